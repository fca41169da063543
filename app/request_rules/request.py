"""A generation request, decoded as far as the rules look and no further.

vLLM reads bodies with Python's `json` and then pydantic in its lax mode, so `"5"`, `5.0` and
`true` are integers there, a repeated key's last value wins, and NaN and Infinity are numbers.
Whatever pydantic would refuse reads as absent here: vLLM answers that itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET
from pydantic import TypeAdapter, ValidationError

from app.catalogue.requests import RequestFacts
from app.request_rules.counting import NOTHING_COUNTED, Counts

_T = TypeVar("_T")
_INTEGER = TypeAdapter(int)
_INTEGERS = TypeAdapter(list[int])
_NUMBER = TypeAdapter(float)
_SWITCH = TypeAdapter(bool)


class Route(StrEnum):
    """The generating routes whose requests are examined."""

    GENERATE = "/inference/v1/generate"
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    CHAT_BATCH = "/v1/chat/completions/batch"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


# SageMaker's route: vLLM takes the first of chat and completions that the body is valid for. One
# that has both's fields is read as the latter, since invalid `messages` must hide nothing.
INVOCATIONS = "/invocations"
_INVOKED = (
    ("prompt", Route.COMPLETIONS),
    ("prompt_embeds", Route.COMPLETIONS),
    ("messages", Route.CHAT),
)

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder()
_IDS = msgspec.json.Decoder(list[int])
_Members: TypeAlias = dict[str, Any]
TOO_DEEP: Final = "\0too deep"
"""Stands among a rule's `fields` for a body that is nested too deeply to be read."""
# Of each object; more unknown members are nothing that anybody reads.
_TOLD: Final = 16


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request, as sent; a field is decoded when a rule asks for it.

    Fields that this route of this version does not have read as not sent, as vLLM ignores
    them; `unknown` has them.

    Attributes:
        route: which route's fields these are.
        parameters: the members that hold the sampling parameters.
        body: the members of the body; the same object except on `/inference/v1/generate`.
        stream: whether it asks for a stream.
        request_id: the id in the body.
        unknown: pointers and names of members that the route does not have; not all of many.
        by_invocation: whether it came by `/invocations`.
        counts: tokens of texts that were counted for it.
        too_deep: whether it is nested too deeply to be read; it has no members then.
        memo: what was worked out once.
    """

    route: Route
    parameters: _Members
    body: _Members
    stream: bool
    request_id: str | None
    unknown: tuple[tuple[str, str], ...] = ()
    by_invocation: bool = False
    counts: Counts = field(default_factory=lambda: NOTHING_COUNTED)
    too_deep: bool = False
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def sent(self, name: str) -> Any:
        """Give a sampling parameter as sent; `UNSET` if it was not."""
        return _member(self.parameters, name)

    def of_body(self, name: str) -> Any:
        """Give a member of the body as sent; `UNSET` if it was not."""
        return _member(self.body, name)

    def prompts(self) -> tuple[list[int], ...]:
        """Give the prompts that are token ids; none where they are text or anything else."""
        known: tuple[list[int], ...] | None = self.memo.get("prompts")
        if known is None:
            known = self.memo["prompts"] = self._prompts()
        return known

    def _prompts(self) -> tuple[list[int], ...]:
        several = self.route is Route.COMPLETIONS
        if not several and self.route is not Route.GENERATE:
            return ()
        name = "prompt" if several else "token_ids"
        raw = self.body.get(name)
        if isinstance(raw, msgspec.Raw):
            if bytes(memoryview(raw)[:1]) == b"[":
                try:
                    ids = self.body[name] = _IDS.decode(raw)
                except msgspec.MsgspecError:
                    pass
                else:
                    return (ids,) if ids else ()
            raw = self.body[name] = _decode(raw)
        if not isinstance(raw, list) or not raw:
            return ()
        if _all_ids(raw):
            return (raw,)
        if several and all(isinstance(one, list) and _all_ids(one) for one in raw):
            return tuple(raw)
        return ()

    def text(self) -> str | None:
        """Give the prompt of `/v1/completions` if it is one text."""
        value = self.of_body("prompt") if self.route is Route.COMPLETIONS else UNSET
        return value if isinstance(value, str) else None

    def texts(self) -> Iterator[str]:
        """Give the texts that become the prompt, or prompts; not what a chat template adds."""
        if self.route is Route.COMPLETIONS:
            prompt = self.of_body("prompt")
            yield from (p for p in _listed(prompt) if isinstance(p, str))
        elif self.route in (Route.CHAT, Route.CHAT_BATCH):
            for message in _flat(self.of_body("messages")):
                content = message.get("content")
                for part in _listed(content):
                    text = part.get("text") if isinstance(part, dict) else part
                    if isinstance(text, str):
                        yield text

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
        return name in self.parameters and _switch(self.sent(name))

    def integers(self, name: str) -> list[int]:
        """Give a list of integers; empty if absent, null or not one."""
        known: list[int] | None = self.memo.get(name)
        if known is None:
            value = self.sent(name)
            known = self.memo[name] = _integers(value) if isinstance(value, list) else []
        return known

    def token_keys(self, name: str) -> list[int]:
        """Give the token ids that are keys of an object; empty if it is none, or has others.

        Two keys may name the same token, such as `"1"` and `"01"`.
        """
        known: list[int] | None = self.memo.get(name)
        if known is None:
            value = self.sent(name)
            try:
                known = list(map(int, value)) if isinstance(value, dict) else []
            except ValueError:
                # `/inference/v1/generate` leaves them to pydantic, to which "1.0" is an integer.
                known = _integers(list(value)) if self.route is Route.GENERATE else []
            self.memo[name] = known
        return known

    def pointer(self, name: str) -> str:
        """Where the field stands in the body, as a JSON pointer."""
        inside = self.route is Route.GENERATE and name not in self.body
        return f"/sampling_params/{name}" if inside else f"/{name}"


def as_number(value: Any) -> float | None:
    """Give a value as vLLM's float; None if absent, null or not one."""
    if type(value) is float:
        return value
    return None if value in (UNSET, None) else _lax(_NUMBER, value)


def read_request(
    route: Route | str,
    body: bytes,
    facts: RequestFacts | None = None,
    counts: Counts = NOTHING_COUNTED,
) -> GenerationRequest | None:
    """Decode a body; None if vLLM will not take it for a request of this route at all.

    Args:
        route: a `Route`, or `INVOCATIONS`.
        body: JSON text, as sent.
        facts: which fields the version's routes have; without them all count as known.
        counts: tokens of texts in it, as far as they were counted.
    """
    try:
        return _read_request(route, body, facts, counts)
    except RecursionError:
        invoked = route == INVOCATIONS
        nothing: _Members = {TOO_DEEP: True}
        return GenerationRequest(
            Route.CHAT if invoked else Route(route),
            parameters=nothing,
            body=nothing,
            stream=False,
            request_id=None,
            by_invocation=invoked,
            too_deep=True,
        )


def _read_request(
    route: Route | str, body: bytes, facts: RequestFacts | None, counts: Counts
) -> GenerationRequest | None:
    members = _object(body)
    if members is None:
        return None
    invoked = route == INVOCATIONS
    if invoked:
        found = [target for key, target in _INVOKED if key in members]
        if not found:
            return None
        route = found[0]
    route = Route(route)
    parameters = members
    if route is Route.GENERATE:
        inner = members.get("sampling_params")
        if isinstance(inner, msgspec.Raw):
            inner = _object(inner)
        if not isinstance(inner, dict):
            return None
        parameters = members["sampling_params"] = inner
    unknown = [] if facts is None else list(_without_unknown(route, members, parameters, facts))
    stream, request_id = _member(members, "stream"), _member(members, "request_id")
    return GenerationRequest(
        route=route,
        parameters=parameters,
        body=members,
        stream=stream is True or _switch(stream),
        request_id=request_id if isinstance(request_id, str) else None,
        unknown=tuple(unknown),
        by_invocation=invoked,
        counts=counts,
    )


def _object(text: bytes | msgspec.Raw) -> _Members | None:
    """Read an object; None if it is none.

    Raises:
        RecursionError: it is nested too deeply.
    """
    try:
        return _OBJECT.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        try:  # Python's decoder, which vLLM uses, takes more: NaN, Infinity, other encodings
            value = json.loads(bytes(text))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def _without_unknown(
    route: Route, members: _Members, parameters: _Members, facts: RequestFacts
) -> Iterator[tuple[str, str]]:
    """Take out, and give, what the route has no field for."""
    known = facts.routes.get(route)
    chat = facts.routes.get(Route.CHAT)
    if known is not None and not known.names.issuperset(members):
        # A batch becomes chat requests, with every member that it was sent with.
        others = chat.names if chat is not None and route is Route.CHAT_BATCH else frozenset()
        yield from _taken_out(members, known.names | others, "")
    inner = facts.sampling_params
    if parameters is not members and inner is not None and not inner.names.issuperset(parameters):
        yield from _taken_out(parameters, inner.names, "/sampling_params")


def _taken_out(members: _Members, known: frozenset[str], pointer: str) -> Iterator[tuple[str, str]]:
    """Take out what is not known, and give the first of it."""
    unknown = [name for name in members if name not in known]
    for name in unknown:
        del members[name]
    for name in unknown[:_TOLD]:
        yield pointer, name


def _member(members: _Members, name: str) -> Any:
    value = members.get(name, UNSET)
    if isinstance(value, msgspec.Raw):
        value = members[name] = _decode(value)
    return value


def _decode(raw: msgspec.Raw) -> Any:
    try:
        return _ANY.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        try:  # such as 1e400, which is infinite to Python
            return json.loads(bytes(raw))
        except (ValueError, RecursionError):
            return UNSET


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _flat(messages: Any) -> Iterator[dict[str, Any]]:
    """Give the messages of a chat, or of each chat of a batch."""
    for message in _listed(messages):
        for one in _listed(message):
            if isinstance(one, dict):
                yield one


def _all_ids(values: list[Any]) -> bool:
    return set(map(type, values)) == {int}


def _integers(value: list[Any]) -> list[int]:
    if set(map(type, value)) <= {int}:
        return value
    return _lax(_INTEGERS, value) or []


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    state = None if value in (UNSET, None) else _lax(_SWITCH, value)
    return state is True


def _lax(adapter: TypeAdapter[_T], value: Any) -> _T | None:
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None
