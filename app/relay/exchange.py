"""One exchange: read what must be read, ask the backend, pass the answer on."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import httpx
import structlog
from starlette.types import Receive, Scope, Send

from app.errors import AdmissionError, NotReady
from app.relay.client import Client
from app.relay.faults import ClientLeft, ReaderTooSlow, fault_of
from app.relay.fleet import Upstream
from app.relay.headers import (
    REPAIR_FIELD,
    REPLAY_FIELD,
    SEED_FIELD,
    WARNING_FIELD,
    RawHeaders,
    first_values,
    forwarded_request_headers,
    request_id_of,
    safe_request_id,
    target_of,
)
from app.relay.inline.verifier import Inspection
from app.relay.response import INTERNAL, Responder
from app.request_rules.examination import Examination, Settle
from app.request_rules.seed_place import SeedPlace
from app.telemetry.exchange import Party, exchange_of

if TYPE_CHECKING:
    from app.relay.relay import Relay

_T = TypeVar("_T")
_log = structlog.get_logger("vllm_admission.relay")

ABORT: Final = "vllm_admission.abort"
"""The ASGI extension that cuts the client's connection without waiting for it to read."""
DEPARTURE: Final = "vllm_admission.departure"
"""The ASGI extension (`Departures`) that tells when a client that was read to its end is gone."""
ARRIVED: Final = "vllm_admission.arrived"
"""The ASGI extension that gives a request's body at once if all of it is there, else None."""
# Whoever asks for these asks whether the backend lives, which is no load to be turned away.
_NEVER_QUEUED: Final = frozenset({"/health", "/ping", "/load", "/version"})
_LAST_WORDS_SECONDS: Final = 1.0
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")


class Departures(Protocol):
    """Who tells of the client's end."""

    def watch(self, callback: Callable[[], None]) -> None:
        """Call it then."""

    def forget(self, callback: Callable[[], None]) -> None:
        """Call it no more."""


class RelayedExchange:
    """A request on its way to the backend, and the answer on its way back.

    `stop` ends it from outside. `sends` and `sending` tell how it comes on with its client.
    """

    def __init__(self, relay: Relay, scope: Scope, receive: Receive, send: Send) -> None:
        """Take on one HTTP request."""
        raw: RawHeaders = scope["headers"]
        fields = first_values(raw)
        length = fields.get(b"content-length")
        declared = int(length) if length is not None and length.isdigit() else None
        self._relay = relay
        self._scope = scope
        self._fields = fields
        # A length that is no number is the server's to refuse, but no reason to look away.
        has_length = length is not None and declared != 0
        self._has_body = has_length or b"transfer-encoding" in fields
        extensions = scope.get("extensions") or {}
        self._client = Client(receive, relay.limits, declared, extensions.get(ARRIVED))
        self.record = exchange_of(scope)
        origin = _origin(scope, fields.get(b"host"))
        self._responder = Responder(send, scope["path"], self.record, origin)
        self._examined = relay.examiner.route_of(scope["method"], scope["path"])
        self._route = self._examined or "other"
        self._phase = "request-body"
        self._presence = asyncio.timeout(None)
        self._reason: AdmissionError | ClientLeft | None = None
        self._abort: Callable[[], None] | None = extensions.get(ABORT)
        self._departures: Departures | None = extensions.get(DEPARTURE)
        self.began = time.monotonic()
        self.record.route = self._route

    @property
    def sends(self) -> int | None:
        """Number of the send that waits for the client to read; None if none does."""
        return self._responder.sends if self._responder.sending else None

    def stop(self, reason: AdmissionError | ClientLeft) -> None:
        """End it, for `reason`; the client is told as far as it can be."""
        if self._reason is None and not self._responder.complete:
            self._reason = reason
            self._presence.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Do it all, and count how it ended."""
        metrics = self._relay.metrics
        outcome = "aborted"
        with metrics.in_flight.track_inprogress():
            try:
                outcome = await self._stoppable(self._exchange())
            except ClientLeft:
                outcome = "client-left"
                metrics.left(self._phase)
            except AdmissionError as error:
                outcome = error.slug
                await self._end_with(error)
            except Exception:
                await self._end_with(AdmissionError(INTERNAL))
                raise
            finally:
                self.record.outcome = outcome
                metrics.ended(self._route, outcome)

    async def _stoppable(self, work: Coroutine[Any, Any, str]) -> str:
        """Await `work` until somebody stops it."""
        try:
            async with self._presence:
                with self._relay.tracked(self):
                    return await work
        except TimeoutError:
            if self._presence.expired() and self._reason is not None:
                raise self._reason from None
            raise

    async def _end_with(self, error: AdmissionError) -> None:
        """Tell the client, in whatever way is left."""
        if not self._responder.started:
            await self._responder.fail(error, self._client.discard)
            return
        if not isinstance(error, ReaderTooSlow):
            try:
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await self._responder.break_off(error)
            except TimeoutError:
                pass
        if not self._responder.complete and self._abort is not None:
            self._abort()

    def tell_times(self) -> None:
        """Record the times of an answered request."""
        waited = self.record.first_byte
        if waited is not None:
            self._relay.metrics.answered(self._route, own=self.record.own, waited=waited)

    async def _exchange(self) -> str:
        """Do it all; gives the outcome for the metrics."""
        backend = self._relay.backend
        if backend is None:
            raise NotReady(
                "no backend to relay to: set VLLM_ADMISSION_BACKEND_URL to the base URL of a "
                "vLLM server. The configuration and replay gates work without one."
            )
        self._relay.refuse_while_draining()
        self._client.refuse_declared_length()
        if self._scope["path"] in _NEVER_QUEUED:
            return await self._examined_exchange(backend)
        await self._place()
        try:
            return await self._examined_exchange(backend)
        finally:
            self._relay.give_place_back()

    async def _place(self) -> None:
        """Take a place, or wait for one as long as the client does."""
        if self._departures is None or self._relay.has_place:
            await self._relay.take_place()
            return
        self._phase = "queue"
        self._departures.watch(self._left)
        try:
            await self._relay.take_place()
        finally:
            self._departures.forget(self._left)
        self._phase = "request-body"

    async def _examined_exchange(self, backend: Upstream) -> str:
        body: bytes | AsyncIterator[bytes] | None = None
        examination = Examination()
        if self._has_body and self._examined is None:
            body = self._client.parts()
        elif self._has_body:
            body = await self._client.read()
        if self._examined is not None and isinstance(body, bytes):
            examination = self._relay.examiner.examine(self._examined, body)
            if examination.settle is not None:
                examination = await self._settled(backend, examination.settle)
            self._relay.metrics.found(examination.findings)
            self._relay.metrics.crashed(examination.crashed)
        self._responder.extra += [(WARNING_FIELD, _octets(w)) for w in examination.warnings]
        self._responder.extra += [(REPAIR_FIELD, _octets(r)) for r in examination.repairs]
        request_id, identity = self._identify(examination.request_id)
        if examination.refusal is not None:
            await self._responder.json(examination.status, examination.refusal)
            return "refused"
        headers = [*forwarded_request_headers(self._scope["headers"]), *identity]
        if examination.body is not None:
            body, headers = examination.body, _with_length(headers, examination.body)
        if examination.lacks_seed and isinstance(body, bytes):
            body, headers = self._seed(examination.seed_place, body, headers, request_id)
        inspection = self._inspect(request_id, body if isinstance(body, bytes) else b"")
        try:
            asking = self._ask(backend, headers, body, inspection)
            return await self._while_present(asking)
        finally:
            if inspection is not None:
                inspection.close()

    async def _settled(self, backend: Upstream, settle: Settle) -> Examination:
        """Have a doubt about the body settled, which takes questions to the backend."""
        self.record.waits_for = Party.BACKEND
        counter = self._relay.tokens.of(backend, self._scope["headers"])
        try:
            return await self._while_present(settle(counter))
        finally:
            self.record.waits_for = Party.CLIENT

    def _seed(
        self, place: SeedPlace | None, body: bytes, headers: RawHeaders, request_id: str
    ) -> tuple[bytes, RawHeaders]:
        """Put the seed of the request id into the body, and tell the client."""
        self._relay.metrics.seeded(self._route, injected=place is not None)
        if place is None:
            return body, headers
        seeded = place.seeded(body, request_id)
        self._responder.extra.append((SEED_FIELD, str(seeded.seed).encode()))
        return seeded.body, _with_length(headers, seeded.body)

    def _inspect(self, request_id: str, body: bytes) -> Inspection | None:
        if self._relay.verifier is None:
            return None
        asked = self._fields.get(REPLAY_FIELD)
        return self._relay.verifier.inspect(
            self._examined, None if asked is None else asked.decode("latin-1"), request_id, body
        )

    def _identify(self, in_body: str | None) -> tuple[str, RawHeaders]:
        """Settle the request id as vLLM does: the field, else the body's, else a new one.

        Gives it, and the field for the backend. An id in the body that is unfit for a field
        still reaches vLLM in the body, so no field is sent then, which would override it.
        """
        given = safe_request_id(self._fields.get(b"x-request-id"))
        usable = given or safe_request_id(in_body)
        request_id = usable or request_id_of(self.record.request_id)
        self.record.request_id = request_id
        field = (b"x-request-id", request_id.encode())
        self._responder.extra.append(field)
        return request_id, [field] if usable or in_body is None else []

    async def _while_present(self, asking: Coroutine[Any, Any, _T]) -> _T:
        """Await `asking`; stop when the client leaves."""
        if self._departures is not None and (self._client.has_all or not self._has_body):
            self._departures.watch(self._left)
            try:
                return await asking
            finally:
                self._departures.forget(self._left)
        watcher = asyncio.create_task(self._watch())
        try:
            return await asking
        finally:
            watcher.cancel()

    async def _watch(self) -> None:
        await self._client.watch()
        self._left()

    def _left(self) -> None:
        self._client.failure = left = ClientLeft()
        self.stop(left)

    async def _ask(
        self,
        backend: Upstream,
        headers: RawHeaders,
        body: bytes | AsyncIterator[bytes] | None,
        inspection: Inspection | None,
    ) -> str:
        self._phase = "waiting"
        self.record.waits_for = Party.BACKEND
        sent = time.perf_counter()
        try:
            response = await backend.send(
                self._scope["method"], target_of(self._scope), headers, body
            )
        except httpx.TransportError as error:
            if self._client.failure is None:
                _log.warning(
                    "backend failed",
                    path=self._scope["path"],
                    reason=repr(error.__cause__ or error),
                )
            raise (self._client.failure or fault_of(error)) from error
        self.record.first_byte = time.perf_counter() - sent
        self._phase = "response"
        try:
            # httpx's own iterator would do per read what is needed once.
            assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - a backend's is
            parts: AsyncIterator[bytes] = aiter(response.stream)
            if inspection is not None:
                parts = await self._held(inspection, response, parts)
            await self._responder.start(response)
            fault = await self._responder.body_of(response, parts, inspection)
        finally:
            await response.aclose()
        if fault is None:
            return f"{response.status_code // 100}xx"
        _log.warning("backend broke off", path=self._scope["path"], reason=str(fault))
        return "cut"

    async def _held(
        self, inspection: Inspection, response: httpx.Response, parts: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Keep a body back until the verdict that its request asked for is known."""
        inspection.opened(response)
        if inspection.holds_body:
            try:
                parts = await inspection.hold(parts)
            except httpx.TransportError as error:
                raise fault_of(error) from error
            outcome = await inspection.verdict()
        elif inspection.asked and inspection.outcome is not None:
            outcome = inspection.outcome
        else:
            return parts
        self._responder.extra.append((REPLAY_FIELD, _octets(str(outcome))))
        return parts


def _with_length(headers: RawHeaders, body: bytes) -> RawHeaders:
    """Give the fields for a body that was edited."""
    kept = [field for field in headers if field[0] != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


def _octets(text: str) -> bytes:
    """Give a field's value: one line, and no control characters, which a client may have sent."""
    return _CONTROLS.sub(" ", text).encode("ascii", "replace")


def _origin(scope: Scope, host: bytes | None) -> bytes:
    """How the client calls us; empty, for a relative redirect, where it says no Host."""
    scheme: str = scope.get("scheme", "http")
    return b"" if host is None else scheme.encode() + b"://" + host
