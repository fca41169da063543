"""A generation request, decoded as far as the rules look and no further.

vLLM reads bodies with Python's `json` and then pydantic in its lax mode, so `"5"`, `5.0` and
`true` are integers there, a repeated key's last value wins, and NaN and Infinity are numbers.
Whatever pydantic would refuse reads as absent here: vLLM answers that itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from pydantic import TypeAdapter, ValidationError

_T = TypeVar("_T")
_INTEGER = TypeAdapter(int)
_NUMBER = TypeAdapter(float)
_SWITCH = TypeAdapter(bool)


class Route(StrEnum):
    """The generating routes whose requests are examined."""

    GENERATE = "/inference/v1/generate"
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class _Parameters(msgspec.Struct, gc=False):
    """The fields that rules read, as sent; `UNSET` where they were not."""

    temperature: Any = UNSET
    top_k: Any = UNSET
    n: Any = UNSET
    seed: Any = UNSET
    logprobs: Any = UNSET
    top_logprobs: Any = UNSET
    prompt_logprobs: Any = UNSET
    logprob_token_ids: Any = UNSET
    allowed_token_ids: Any = UNSET
    logit_bias: Any = UNSET
    stop_token_ids: Any = UNSET
    min_tokens: Any = UNSET
    trace_decode_token_ids: Any = UNSET
    use_beam_search: Any = UNSET
    echo: Any = UNSET
    include: Any = UNSET


class _Body(_Parameters):
    stream: Any = UNSET
    request_id: Any = UNSET


class _GenerateBody(msgspec.Struct, gc=False):
    sampling_params: _Parameters
    stream: Any = UNSET
    request_id: Any = UNSET


_GENERATE = msgspec.json.Decoder(_GenerateBody)
_OPENAI = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request; `parameters` are its sampling parameters as sent."""

    route: Route
    parameters: _Parameters
    stream: bool
    request_id: str | None

    def sent(self, name: str) -> Any:
        """Give a field as sent; `UNSET` if it was not."""
        return getattr(self.parameters, name)

    def has(self, name: str) -> bool:
        """Whether a field was sent with a value other than null."""
        return self.sent(name) not in (UNSET, None)

    def integer(self, name: str) -> int | None:
        """Give a field as vLLM's integer; None if absent, null or not one."""
        value = self.sent(name)
        if type(value) is int:
            return value
        return None if value in (UNSET, None) else _lax(_INTEGER, value)

    def number(self, name: str) -> float | None:
        """Give a field as vLLM's float; None if absent, null or not one."""
        return as_number(self.sent(name))

    def switch(self, name: str) -> bool:
        """Give a field as vLLM's boolean; false if absent, null or not one."""
        return _switch(self.sent(name))

    def integers(self, name: str) -> list[int]:
        """Give a list of integers; empty if absent, null or not one."""
        value = self.sent(name)
        if not isinstance(value, list):
            return []
        items = [item if type(item) is int else _lax(_INTEGER, item) for item in value]
        return [] if None in items else [item for item in items if item is not None]

    def pointer(self, name: str) -> str:
        """Where the field stands in the body, as a JSON pointer."""
        return f"/sampling_params/{name}" if self.route is Route.GENERATE else f"/{name}"


def as_number(value: Any) -> float | None:
    """Give a value as vLLM's float; None if absent, null or not one."""
    if type(value) is float:
        return value
    return None if value in (UNSET, None) else _lax(_NUMBER, value)


def read_request(route: Route, body: bytes) -> GenerationRequest | None:
    """Decode a body; None if vLLM will not take it for a request of this route at all."""
    decoder = _GENERATE if route is Route.GENERATE else _OPENAI
    try:
        decoded: _GenerateBody | _Body = decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        try:
            decoded = msgspec.convert(json.loads(body), decoder.type)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
    return GenerationRequest(
        route=route,
        parameters=decoded.sampling_params if isinstance(decoded, _GenerateBody) else decoded,
        stream=_switch(decoded.stream),
        request_id=decoded.request_id if isinstance(decoded.request_id, str) else None,
    )


def _switch(value: Any) -> bool:
    state = None if value in (UNSET, None) else _lax(_SWITCH, value)
    return state is True


def _lax(adapter: TypeAdapter[_T], value: Any) -> _T | None:
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None
