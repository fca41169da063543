"""One backend or a few: which of them gets a request, and when it is tried again.

The choice is the healthy backend with the fewest requests in flight, nothing cleverer: for a
fleet with prefix caches there are routers (docs/fleet.md).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import httpx
import structlog

from app.relay.breaker import Breaker, BreakerLimits, BreakerState
from app.relay.faults import CircuitOpen
from app.relay.handshake import BackendSocket, HandshakeDenied, SocketOptions
from app.relay.headers import RawHeaders
from app.relay.metrics import FleetMetrics
from app.relay.upstream import Backend

_log = structlog.get_logger("vllm_admission.relay")
_LONGEST_PAUSE = 1.0
_T = TypeVar("_T")


class Upstream(Protocol):
    """Whatever takes requests on: a backend, or several."""

    @property
    def url(self) -> httpx.URL:
        """Where it is, for messages."""

    async def send(
        self,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:
        """See `Backend.send`."""

    async def open_socket(
        self, target: bytes, headers: RawHeaders, options: SocketOptions
    ) -> BackendSocket:
        """See `Backend.open_socket`."""

    async def aclose(self) -> None:
        """Close every connection."""


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often a request that could not even connect is tried again.

    Attributes:
        retries: after the first attempt.
        pause: seconds before the second attempt at the same backend; doubled each time, of
            which a random half to whole is waited.
    """

    retries: int = 2
    pause: float = 0.1


@dataclass(eq=False)
class Member:
    """One backend with what its requests have shown, and whether it says that it is well."""

    backend: Backend
    breaker: Breaker
    well: bool = True
    _closed: bool = True

    @property
    def name(self) -> str:
        """Its URL, as metrics and the log have it."""
        return str(self.backend.url).rstrip("/")

    def note(self, metrics: FleetMetrics | None) -> None:
        """Tell of a change of the breaker."""
        closed = self.breaker.state is BreakerState.CLOSED
        if closed == self._closed:
            return
        self._closed = closed
        _log.warning("circuit breaker", backend=self.name, state=str(self.breaker.state))
        if metrics is not None:
            metrics.healthy(self.name, closed and self.well)
            if not closed:
                metrics.opened(self.name)


class Fleet:
    """Several backends as one. Make it inside the running event loop; `aclose` it there."""

    def __init__(
        self,
        backends: Sequence[Backend],
        breaker: BreakerLimits | None = None,
        retry: RetryLimits | None = None,
        metrics: FleetMetrics | None = None,
    ) -> None:
        """Relay to `backends`, of which there is at least one."""
        self.members = [Member(b, Breaker(breaker or BreakerLimits())) for b in backends]
        self._metrics = metrics
        for member in self.members:
            if metrics is not None:
                metrics.healthy(member.name, healthy=True)
        self._retry = retry or RetryLimits()
        self._turn = 0

    @property
    def url(self) -> httpx.URL:
        """The first backend's."""
        return self.members[0].backend.url

    @property
    def healthy(self) -> bool:
        """Whether any backend is thought to answer."""
        return any(m.breaker.state is BreakerState.CLOSED for m in self.members)

    async def send(
        self,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:
        """Send to one backend; to another, or again, only where no connection was had.

        Raises:
            httpx.TransportError: see `Backend.send`.
            CircuitOpen: none has answered of late; nothing was sent.
        """
        watched = _Watched(body) if isinstance(body, AsyncIterator) else None

        def attempt(backend: Backend) -> Awaitable[httpx.Response]:
            return backend.send(method, target, headers, body if watched is None else watched)

        return await self._attempted(attempt, watched)

    async def open_socket(
        self, target: bytes, headers: RawHeaders, options: SocketOptions
    ) -> BackendSocket:
        """Open a WebSocket to one backend, by the same rules.

        Raises:
            httpx.TransportError, HandshakeDenied: see `Backend.open_socket`.
            CircuitOpen: none has answered of late; nothing was sent.
        """
        return await self._attempted(lambda b: b.open_socket(target, headers, options), None)

    async def aclose(self) -> None:
        """Close every connection."""
        for member in self.members:
            await member.backend.aclose()

    async def _attempted(
        self, attempt: Callable[[Backend], Awaitable[_T]], body: _Watched | None
    ) -> _T:
        tried: list[Member] = []
        while True:
            member = self._choose(tried)
            try:
                answer = await attempt(member.backend)
            except BaseException as error:
                self._judge(member, body, error)
                if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise
                tried.append(member)
                if not self._tries_again(tried, error):
                    raise
            else:
                member.breaker.succeeded()
                member.note(self._metrics)
                return answer
            if self._metrics is not None:
                self._metrics.retried(member.name)
            await self._pause(tried)

    def found(self, member: Member, *, well: bool) -> None:
        """Note whether a backend says that it is well; one that is not is asked last."""
        if well == member.well:
            return
        member.well = well
        if self._metrics is not None:
            closed = member.breaker.state is BreakerState.CLOSED
            self._metrics.healthy(member.name, well and closed)

    def _choose(self, tried: Sequence[Member]) -> Member:
        """Choose the backend to ask: one that is due to prove itself, else the least busy."""
        if len(self.members) == 1 and self.members[0].breaker.admits():
            return self.members[0]
        untried = [m for m in self.members if m not in tried] or self.members
        open_ones = [m for m in untried if m.breaker.due]
        closed = [m for m in untried if m.breaker.state is BreakerState.CLOSED]
        self._turn += 1
        # Sorting keeps the order of equals, and what is not well comes last.
        for member in sorted((*open_ones, *self._by_load(closed)), key=lambda m: not m.well):
            if member.breaker.admits():
                return member
        wait = max(1.0, min(m.breaker.retry_after for m in self.members))
        raise CircuitOpen(
            "no vLLM backend has answered of late, so that none is asked; the next try is "
            f"possible in {wait:.0f} s",
            retry_after=wait,
        )

    def _by_load(self, members: list[Member]) -> list[Member]:
        if len(members) < 2:
            return members
        start = self._turn % len(members)
        turned = members[start:] + members[:start]
        return sorted(turned, key=lambda m: m.backend.in_flight)

    def _tries_again(self, tried: Sequence[Member], error: httpx.TransportError) -> bool:
        if len(tried) > self._retry.retries:
            return False
        # Waiting for the same silent host again would only multiply the client's wait.
        others = any(m not in tried for m in self.members)
        return others or not isinstance(error, httpx.ConnectTimeout)

    def _judge(self, member: Member, body: _Watched | None, error: BaseException) -> None:
        """Tell the breaker why an attempt failed."""
        clients_fault = body is not None and body.broke_off
        if isinstance(error, HandshakeDenied):
            member.breaker.succeeded()
        elif isinstance(error, httpx.TransportError) and not clients_fault:
            member.breaker.failed()
        else:
            member.breaker.undecided()
        member.note(self._metrics)

    async def _pause(self, tried: Sequence[Member]) -> None:
        if any(m not in tried for m in self.members):
            return
        longest = min(_LONGEST_PAUSE, self._retry.pause * 2.0 ** (len(tried) - 1))
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - only jitter


class _Watched(AsyncIterator[bytes]):
    """A request body that remembers whether it was the client that broke it off."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self.broke_off = False

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except StopAsyncIteration:
            raise
        except BaseException:
            self.broke_off = True
            raise

    async def aclose(self) -> None:
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()
