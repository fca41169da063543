"""Request bodies: what vLLM's routes take, checked in the same order and words.

Source: `vllm/entrypoints/openai/{completion,chat_completion}/protocol.py`,
`vllm/entrypoints/serve/tokenize/protocol.py`,
`vllm/entrypoints/scale_out/token_in_token_out/protocol.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request

from app.simulator.errors import InvalidRequest, NotSimulated
from app.simulator.sampling_params import SamplingParams
from app.simulator.settings import SimulatorSettings
from app.simulator.wire.dialect import UNSIMULATED, Dialect
from app.simulator.wire.messages import ChatMessage
from app.simulator.wire.problems import body_error, unsupported_media

_T = TypeVar("_T")
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
_int, _float, _str, _bool, _any = (
    core_schema.int_schema(),
    core_schema.float_schema(),
    core_schema.str_schema(),
    core_schema.bool_schema(),
    core_schema.any_schema(),
)
_ints, _strs = core_schema.list_schema(_int), core_schema.list_schema(_str)
_optional = core_schema.nullable_schema
# In the order of vLLM's structure, which is the order of reported errors.
_SAMPLING_FIELDS: dict[str, CoreSchema] = {
    "n": _int,
    "presence_penalty": _float,
    "frequency_penalty": _float,
    "repetition_penalty": _float,
    "temperature": _float,
    "top_p": _float,
    "top_k": _int,
    "min_p": _float,
    "seed": _optional(_int),
    "stop": _optional(core_schema.union_schema([_str, _strs])),
    "stop_token_ids": _optional(_ints),
    "ignore_eos": _bool,
    "max_tokens": _optional(_int),
    "min_tokens": _int,
    "logprobs": _optional(_int),
    "prompt_logprobs": _optional(_int),
    "logprob_token_ids": _optional(_ints),
    "detokenize": _bool,
    "skip_special_tokens": _bool,
    "include_stop_str_in_output": _bool,
    "output_kind": core_schema.literal_schema([0, 1, 2]),
    "logit_bias": _optional(core_schema.dict_schema(_int, _float)),
    "allowed_token_ids": _optional(_ints),
    "bad_words": _optional(_strs),
    **dict.fromkeys(UNSIMULATED, _any),
}


def _dialect(info: ValidationInfo) -> Dialect:
    """Give the version's dialect, which `read` passes to the validators."""
    return info.context or Dialect.of(SimulatorSettings())


def _validate_msgspec(given: dict[str, Any], info: ValidationInfo) -> SamplingParams:
    """Build the parameters; the name is vLLM's and appears in the errors of old versions."""
    for name in sorted(_dialect(info).unsimulated):
        if given.get(name) is not None:
            raise NotSimulated(f"The simulated backend does not support {name}.")
    if not -(2**63) <= (given.get("seed") or 0) < 2**64:
        # vLLM finds out when it sends the request to the engine, hence after the ranges.
        SamplingParams.parse({**given, "seed": None})
        raise InvalidRequest("can't serialize ints < -2**63 or > 2**64 - 1")
    params = SamplingParams.parse(given)
    # Left out, it fills the context, but only after vLLM has checked its default of 16.
    return params if "max_tokens" in given else replace(params, max_tokens=None)


def _sampling_schema(_source: object, _handler: object) -> CoreSchema:
    fields = {
        name: core_schema.typed_dict_field(schema, required=False)
        for name, schema in _SAMPLING_FIELDS.items()
    }
    from_json = core_schema.with_info_after_validator_function(
        _validate_msgspec, core_schema.typed_dict_schema(fields)
    )
    return core_schema.union_schema([core_schema.is_instance_schema(SamplingParams), from_json])


Sampling = Annotated[SamplingParams, GetPydanticSchema(_sampling_schema)]


class StreamOptions(BaseModel):
    """What a stream says about usage."""

    model_config = ConfigDict(extra="allow")
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerateRequest(BaseModel):
    """Body of `/inference/v1/generate`."""

    request_id: str | None = None
    token_ids: list[int] = Field(min_length=1)
    sampling_params: Sampling
    model: str | None = None
    return_token_ids: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(default=None, min_length=1)
    priority: Int64 = 0

    @model_validator(mode="before")
    @classmethod
    def _check_salt(cls, data: Any, info: ValidationInfo) -> Any:
        salt = data.get("cache_salt") if isinstance(data, dict) else None
        bad = salt is not None and not (isinstance(salt, str) and salt)
        if bad and _dialect(info).words_salt_errors:
            raise InvalidRequest(
                "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"
            )
        return data

    @field_validator("token_ids")
    @classmethod
    def _check_token_ids(cls, ids: list[int]) -> list[int]:
        if any(token < 0 for token in ids):
            raise ValueError("token_ids must not contain negative values")
        return ids


class GenerateModeRequest(GenerateRequest):
    """The same from 0.32 on, where the answer may have text."""

    output_mode: Literal["tokens", "text"] = "tokens"


class GenerateDerenderRequest(GenerateRequest):
    """The same from 0.33 on, where the answer may be a message."""

    output_mode: Literal["tokens", "text", "derender"] = "tokens"

    @field_validator("output_mode")
    @classmethod
    def _check_mode(cls, mode: str) -> str:
        if mode == "derender":
            raise NotSimulated("The simulated backend does not support output_mode derender.")
        return mode


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="allow")

    @model_validator(mode="wrap")
    @classmethod
    def __log_extra_fields__(cls, data: Any, handler: Callable[[Any], Any]) -> Any:
        """Do nothing; vLLM's wrapper of this name appears in the errors of old versions."""
        return handler(data)


class _OpenAIRequest(_Lenient):
    """What the two OpenAI routes share."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    request_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    add_special_tokens: bool = True
    use_beam_search: bool = False
    echo: bool | None = False

    @model_validator(mode="before")
    @classmethod
    def _check_stream_options(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("stream_options") and not data.get("stream"):
            raise InvalidRequest(
                "Stream options can only be defined when `stream=True`.", "stream_options"
            )
        return data


class CompletionRequest(_OpenAIRequest):
    """Body of `/v1/completions`."""

    prompt: (
        list[Annotated[int, Field(ge=0)]]
        | list[list[Annotated[int, Field(ge=0)]]]
        | str
        | list[str]
        | None
    ) = None
    logprobs: int | None = None
    max_tokens: int | None = 16
    n: int = 1

    @model_validator(mode="before")
    @classmethod
    def _check_prompt(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("prompt") in (None, ""):
            raise InvalidRequest(
                "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
            )
        count = data.get("logprobs")
        if not _dialect(info).lists_all_completions and isinstance(count, int) and count < 0:
            raise InvalidRequest("`logprobs` must be a positive value.", "logprobs", count)
        _check_counts(data, "logprobs")
        return data if data.get("max_tokens") is not None else {**data, "max_tokens": 16}


class ChatCompletionRequest(_OpenAIRequest):
    """Body of `/v1/chat/completions`."""

    messages: list[ChatMessage]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = "none"

    @model_validator(mode="before")
    @classmethod
    def _check_logprobs(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        _check_counts(data, "top_logprobs")
        if data.get("top_logprobs") and not data.get("logprobs"):
            raise InvalidRequest(
                "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
            )
        if "tool_choice" not in data and data.get("tools"):
            return {**data, "tool_choice": "auto"}
        return data


def _check_counts(data: dict[str, Any], logprobs: str) -> None:
    """Check the numbers of logprobs before their types, as the OpenAI routes do."""
    for name in ("prompt_logprobs", logprobs):
        value = data.get(name)
        if value is not None and not isinstance(value, int | float):
            raise InvalidRequest(f"`{name}` must be an integer.", name, value)
    prompt = data.get("prompt_logprobs")
    if prompt is not None and data.get("stream") and (prompt > 0 or prompt == -1):
        raise InvalidRequest(
            "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs"
        )
    for name in ("prompt_logprobs", logprobs):
        value = data.get(name)
        if value is not None and value < 0 and value != -1:
            raise InvalidRequest(f"`{name}` must be a positive value or -1.", name, value)


class TokenizeCompletionRequest(_Lenient):
    """Body of `/tokenize` with a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(_Lenient):
    """Body of `/tokenize` with a conversation."""

    model: str | None = None
    messages: list[ChatMessage]
    return_token_strs: bool | None = False


class DetokenizeRequest(_Lenient):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]


GENERATE = TypeAdapter[GenerateRequest](GenerateRequest)
GENERATE_MODE = TypeAdapter[GenerateRequest](GenerateModeRequest)
GENERATE_DERENDER = TypeAdapter[GenerateRequest](GenerateDerenderRequest)
COMPLETION = TypeAdapter[CompletionRequest](CompletionRequest)
CHAT = TypeAdapter[ChatCompletionRequest](ChatCompletionRequest)
DETOKENIZE = TypeAdapter[DetokenizeRequest](DetokenizeRequest)
TOKENIZE = TypeAdapter[TokenizeCompletionRequest | TokenizeChatRequest](
    TokenizeCompletionRequest | TokenizeChatRequest
)


async def read(request: Request, adapter: TypeAdapter[_T], dialect: Dialect) -> _T:
    """Read a JSON body as `adapter` has it.

    Raises:
        Refusal: not declared as JSON, not JSON, or not what the route takes.
        HTTPException: not text at all; FastAPI answers this one in its own form.
    """
    media = request.headers.get("content-type", "").lower().split(";", maxsplit=1)[0]
    if media != "application/json":
        raise unsupported_media()
    content = await request.body()
    if not content:
        missing = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        raise body_error([missing], dialect)
    try:
        data = json.loads(content)
    except json.JSONDecodeError as error:
        invalid = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise body_error([invalid], dialect) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise HTTPException(400, "There was an error parsing the body") from error
    try:
        return adapter.validate_python(data, from_attributes=True, context=dialect)
    except ValidationError as error:
        found = [
            {**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)
        ]
        raise body_error(found, dialect) from error
