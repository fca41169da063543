"""The relay: what all exchanges share, and who may begin one.

Pure ASGI. Whoever opens the backend's response closes it in a `finally`, and a client that
leaves cancels whatever the exchange is doing, which closes the backend's connection; vLLM
aborts the sequence then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog
from starlette.types import Receive, Scope, Send

from app.relay.capacity import Capacity, CapacityLimits
from app.relay.client import BodyLimits
from app.relay.counting import BackendTokens
from app.relay.exchange import RelayedExchange
from app.relay.faults import Draining, ReaderTooSlow, StreamTooLong
from app.relay.fleet import Upstream
from app.relay.inline.verifier import InlineVerifier
from app.relay.metrics import RelayMetrics
from app.relay.websocket import RelayedSocket, SocketLimits
from app.request_rules.examination import Examination

_log = structlog.get_logger("vllm_admission.relay")
# After streams were told to end, the time they have to say so to their clients.
_ENDING_SECONDS = 2.0


class Examiner(Protocol):
    """The request rules, as the relay sees them."""

    def route_of(self, method: str, path: str) -> str | None:
        """Give the route's name if its requests are examined, else None."""

    def examine(self, route: str, body: bytes) -> Examination:
        """Judge the body of such a request."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an exchange may take, in seconds.

    Attributes:
        write_timeout: that a client may leave unread what waits for it.
        max_seconds: from the request's header to the answer's end; None is without a bound.
    """

    write_timeout: float = 300.0
    max_seconds: float | None = None


class Relay:
    """Passes requests and WebSockets to the backend. Use it inside one event loop."""

    def __init__(
        self,
        backend: Upstream | None,
        examiner: Examiner,
        metrics: RelayMetrics,
        limits: BodyLimits,
        verifier: InlineVerifier | None = None,
        *,
        capacity: CapacityLimits | None = None,
        pace: Pace | None = None,
        sockets: SocketLimits | None = None,
    ) -> None:
        """Relay to `backend`; without one every request is answered with 503.

        Without a `verifier` nothing is replayed.
        """
        self.backend = backend
        self.verifier = verifier
        self.examiner = examiner
        self.metrics = metrics
        self.limits = limits
        self.socket_limits = sockets or SocketLimits()
        self.tokens = BackendTokens()
        self.draining = False
        self._capacity = Capacity(capacity or CapacityLimits())
        self._pace = pace or Pace()
        self._active: set[RelayedExchange | RelayedSocket] = set()
        self._stuck: dict[RelayedExchange, tuple[int, float]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request or WebSocket."""
        if scope["type"] == "websocket":
            await RelayedSocket(self, scope, receive, send).run()
            return
        exchange = RelayedExchange(self, scope, receive, send)
        try:
            await exchange.record.timed(exchange.run())
        finally:
            exchange.tell_times()

    def refuse_while_draining(self) -> None:
        """Refuse what begins after `drain`.

        Raises:
            Draining: it does.
        """
        if self.draining:
            raise Draining("this server is about to end; ask again, which reaches another one")

    @property
    def has_place(self) -> bool:
        """Whether `take_place` need not wait."""
        return not self._capacity.full

    async def take_place(self) -> None:
        """Take one of the places for requests in flight; `give_place_back` frees it.

        Raises:
            Overloaded: there is none, and none gets free in time.
        """
        if self._capacity.full:
            with self.metrics.queued.track_inprogress():
                await self._capacity.take()
        else:
            await self._capacity.take()

    def give_place_back(self) -> None:
        """Let the next in the queue have the place."""
        self._capacity.give_back()

    @contextmanager
    def tracked(self, exchange: RelayedExchange | RelayedSocket) -> Iterator[None]:
        """Have an exchange watched and, at the end of the process, stopped."""
        self._active.add(exchange)
        if self._sweeping is None:
            self._sweep_later()
        try:
            yield
        finally:
            self._active.discard(exchange)
            if not self._active:
                self._empty.set()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, wait for those in flight, and end what is left after `seconds`.

        What is left is told so: an event stream by one error event, a WebSocket by its close
        code.
        """
        self.draining = True
        if await self._emptied(seconds):
            return
        _log.warning("ending requests in flight", number=len(self._active), after_seconds=seconds)
        for exchange in list(self._active):
            exchange.stop(
                Draining(f"this server ended, {seconds:g} s after it was told to; ask again")
            )
        await self._emptied(_ENDING_SECONDS)

    def resume(self) -> None:
        """Take requests again after a `drain`."""
        self.draining = False

    async def _emptied(self, seconds: float) -> bool:
        """Wait until nothing is in flight; whether that came about."""
        try:
            async with asyncio.timeout(seconds):
                while self._active:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _sweep_later(self) -> None:
        pace = self._pace
        shortest = min(pace.write_timeout, pace.max_seconds or pace.write_timeout)
        delay = min(max(shortest / 4, 0.01), 5.0)
        self._sweeping = asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        """Stop what takes too long. One timer for all costs less than one for each."""
        self._sweeping = None
        now = time.monotonic()
        stuck, self._stuck = self._stuck, {}
        for exchange in list(self._active):
            if isinstance(exchange, RelayedExchange):
                self._judge_pace(exchange, now, stuck.get(exchange))
        if self._active:
            self._sweep_later()

    def _judge_pace(
        self, exchange: RelayedExchange, now: float, before: tuple[int, float] | None
    ) -> None:
        longest = self._pace.max_seconds
        if longest is not None and now - exchange.began >= longest:
            exchange.stop(
                StreamTooLong(
                    f"the answer took more than {longest:g} s (VLLM_ADMISSION_MAX_STREAM_SECONDS)"
                )
            )
            return
        number = exchange.sends
        if number is None:
            return
        since = before[1] if before is not None and before[0] == number else now
        if now - since >= self._pace.write_timeout:
            exchange.stop(
                ReaderTooSlow(
                    f"the client read nothing for {self._pace.write_timeout:g} s "
                    "(VLLM_ADMISSION_WRITE_TIMEOUT)"
                )
            )
        else:
            self._stuck[exchange] = number, since
