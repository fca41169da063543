"""What a span tells of a generation: its parameters and its token counts, never its content.

Names are those of OpenTelemetry's GenAI conventions (still in development there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_OPERATIONS: Final[Mapping[str, str]] = {
    "/inference/v1/generate": "generate_content",
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
_PARAMETERS: Final[Mapping[str, str]] = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
_LONGEST_NAME: Final = 128
# Of a body, or of the end of a stream, in which the token counts are.
LARGEST_BODY: Final = 2**20
STREAM_TAIL: Final = 16 * 1024

Attributes = dict[str, str | int | float | list[str]]


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    model: str | None = None
    usage: _Usage | None = None
    choices: list[_Choice] = []
    stop_reason: str | None = None


_request = msgspec.json.Decoder(dict[str, msgspec.Raw])
_answer = msgspec.json.Decoder(_Answer)


def operation_of(path: str) -> str | None:
    """Name what a route does, None for those that generate nothing."""
    return _OPERATIONS.get(path)


def request_attributes(operation: str, body: bytes) -> Attributes:
    """Read a request's parameters; what is not of the expected type is left out."""
    attributes: Attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "vllm"}
    members = _members(body)
    parameters = {**members, **_members(members.get("sampling_params", b"{}"))}
    model = _value(members.get("model"))
    if isinstance(model, str):
        attributes["gen_ai.request.model"] = model[:_LONGEST_NAME]
    for name, attribute in _PARAMETERS.items():
        value = _value(parameters.get(name))
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[attribute] = value if abs(value) < 2**63 else float(value)
    return attributes


def answer_attributes(body: bytes, *, streamed: bool) -> Attributes:
    """Read token counts and finish reasons of a body, or of the last events of a stream."""
    attributes: Attributes = {}
    reasons: list[str] = []
    for document in _documents(body) if streamed else (body,):
        try:
            answer = _answer.decode(document)
        except msgspec.DecodeError:
            continue
        if answer.model is not None:
            attributes["gen_ai.response.model"] = answer.model[:_LONGEST_NAME]
        reasons += [c.finish_reason for c in answer.choices if c.finish_reason is not None]
        reasons += [answer.stop_reason] if answer.stop_reason is not None else []
        attributes.update(_usage(answer.usage))
    if reasons:
        attributes["gen_ai.response.finish_reasons"] = reasons
    return attributes


def _usage(usage: _Usage | None) -> Attributes:
    if usage is None:
        return {}
    counts = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens or usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens or usage.output_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _documents(stream: bytes) -> list[bytes]:
    lines = stream.splitlines()
    return [line[5:] for line in lines if line.startswith(b"data:")]


def _members(document: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    try:
        return _request.decode(document)
    except msgspec.DecodeError:
        return {}


def _value(raw: msgspec.Raw | None) -> Any:
    """Decode a scalar; anything longer is content, and no business of ours."""
    if raw is None or len(bytes(raw)) > 2 * _LONGEST_NAME:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
