"""Counting tokens by the backend's own `/tokenize`, for rules that need a tokenizer.

vLLM counts there as it does for a generation, without special tokens and without a limit of
length (`entrypoints/serve/tokenize/protocol.py::TokenizeCompletionRequest.build_tok_params`).
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec
import structlog

from app.errors import AdmissionError
from app.relay.faults import NotCounted
from app.relay.fleet import Upstream
from app.relay.headers import VIA, RawHeaders
from app.request_rules.counting import Counts, TokenCounter, Tokens

_log = structlog.get_logger("vllm_admission.relay")
_TARGET: Final = b"/tokenize"
_OK: Final = 200
_SERVER_ERROR: Final = 500
# What says who asks, or which trace it belongs to.
_PASSED_ON: Final = frozenset({b"authorization", b"x-api-key", b"traceparent", b"tracestate"})
_MOST_BYTES: Final = 32 * 2**20


class _Answer(msgspec.Struct):
    """The answer of `/tokenize`, as far as it is read."""

    count: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class CountingLimits:
    """What counting may cost.

    Attributes:
        seconds: for all questions about one request; what is not answered then stays uncounted.
        questions: on their way at a time, of all requests together.
        remembered: counts that are kept; a word of more than `longest` characters is not.
        keep_seconds: how long they are, as a backend may come back with another model.
    """

    seconds: float = 5.0
    questions: int = 8
    remembered: int = 8192
    longest: int = 256
    keep_seconds: float = 300.0


class BackendTokens:
    """The counts that are remembered, and who may ask for more. Use it inside one event loop.

    `works` once the backend has counted something: it can then, and only not just now.
    """

    def __init__(self, limits: CountingLimits | None = None) -> None:
        """Know nothing yet."""
        self.limits = limits or CountingLimits()
        self.places = asyncio.Semaphore(self.limits.questions)
        self.works = False
        self._known: OrderedDict[tuple[str | None, str], tuple[float, Tokens]] = OrderedDict()

    def of(self, backend: Upstream, fields: RawHeaders) -> TokenCounter:
        """Give a counter for one request, whose fields say who asks."""
        passed = [field for field in fields if field[0].lower() in _PASSED_ON]
        return _Counter(self, backend, [*passed, (b"content-type", b"application/json"), VIA])

    def recall(self, model: str | None, text: str) -> Tokens | None:
        """Give what is remembered, if it is not too old."""
        found = self._known.get((model, text))
        now = asyncio.get_running_loop().time()
        return found[1] if found is not None and now < found[0] else None

    def remember(self, model: str | None, text: str, tokens: Tokens) -> None:
        """Keep a count; the oldest makes room."""
        if len(text) > self.limits.longest:
            return
        until = asyncio.get_running_loop().time() + self.limits.keep_seconds
        self._known[model, text] = until, tokens
        self._known.move_to_end((model, text))
        if len(self._known) > self.limits.remembered:
            self._known.popitem(last=False)


class _Counter:
    """Asks for one request; after the first failure, or when time is up, for nothing more."""

    def __init__(self, shared: BackendTokens, backend: Upstream, fields: RawHeaders) -> None:
        self._shared = shared
        self._backend = backend
        self._fields = fields
        self._until: float | None = None
        self._failed = False
        self._is_busy = False

    async def count(self, texts: Sequence[str], model: str | None) -> Counts:
        """See `TokenCounter.count`.

        Raises:
            NotCounted: a backend that can count is too busy to. Nobody may get past the rules by
                keeping it so.
        """
        found = {text: self._shared.recall(model, text) for text in texts}
        missing = iter([text for text, known in found.items() if known is None])

        async def ask() -> None:
            for text in missing:
                async with self._shared.places:
                    if self._failed:
                        return
                    found[text] = await self._asked(text, model)

        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._shared.limits.seconds
        try:
            async with asyncio.timeout_at(self._until), asyncio.TaskGroup() as group:
                for _ in range(min(len(texts), self._shared.limits.questions)):
                    group.create_task(ask())
        except TimeoutError:
            self._give_up(f"no answer in {self._shared.limits.seconds:g} s", busy=True)
        if self._is_busy and self._shared.works:
            raise NotCounted(
                "the backend is too busy to count the tokens of bad_words, too many of which "
                "would end its engine; ask again"
            )
        return found

    async def _asked(self, text: str, model: str | None) -> Tokens | None:
        question: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        if model is not None:
            question["model"] = model
        try:
            body = json.dumps(question).encode()
            response = await self._backend.send("POST", _TARGET, self._fields_for(body), body)
            try:
                answer = await _read(response)
            finally:
                await response.aclose()
        except (httpx.TransportError, AdmissionError) as error:
            self._give_up(repr(error), busy=True)
            return None
        if isinstance(answer, str):
            self._give_up(answer, busy=response.status_code >= _SERVER_ERROR)
            return None
        self._shared.works = True
        tokens = Tokens(answer.count, answer.tokens[0] if answer.tokens else None)
        self._shared.remember(model, text, tokens)
        return tokens

    def _fields_for(self, body: bytes) -> RawHeaders:
        return [*self._fields, (b"content-length", str(len(body)).encode())]

    def _give_up(self, reason: str, *, busy: bool) -> None:
        if not self._failed:
            _log.warning("tokens not counted", reason=reason)
            self._is_busy = busy
        self._failed = True


async def _read(response: httpx.Response) -> _Answer | str:
    """Give the answer, or why it is none."""
    if response.status_code != _OK:
        return f"status {response.status_code}"
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > _MOST_BYTES:
            return "the answer is too long"
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError as error:
        return f"the answer is none: {error}"
    return answer if answer.count == len(answer.tokens) else "the answer contradicts itself"
