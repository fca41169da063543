"""The client of one exchange: its request body as it arrives, and the moment it leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from starlette.types import Receive

from app.errors import AdmissionError, PayloadTooLarge
from app.relay.faults import BodyTooSlow, ClientLeft

_T = TypeVar("_T")
_LINGERING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a request body may cost.

    `max_bytes` is counted before anything is parsed. A body must arrive at `min_rate` bytes
    per second on average, after `grace` seconds that everybody has.
    """

    max_bytes: int
    grace: float = 30.0
    min_rate: float = 1024.0


class Client:
    """The receiving half of an ASGI connection, read by one reader at a time.

    Either `read()` the body and then `watch()`, or `watch()` while somebody iterates
    `parts()`; a server reports a disconnect only to a pending `receive()`.
    """

    def __init__(
        self,
        receive: Receive,
        limits: BodyLimits,
        declared: int | None,
        arrived: Callable[[], bytes | None] | None = None,
    ) -> None:
        """Serve one request; `declared` is its Content-Length.

        `arrived()` gives the body without a wait, if it is there already.
        """
        self._receive = receive
        self._arrived = arrived
        self._limits = limits
        self._declared = declared
        self._received = 0
        self._waited = 0.0
        self._slot: asyncio.Queue[bytes | None] | None = None  # while somebody takes parts
        self._over = False
        self.failure: AdmissionError | ClientLeft | None = None
        """Why the body broke off, for whoever sees only that sending it failed."""

    @property
    def has_all(self) -> bool:
        """Whether the whole body was read."""
        return self._over

    async def read(self) -> bytes:
        """Give the whole body.

        Raises:
            PayloadTooLarge: it is longer than allowed, by its own word or in fact.
            BodyTooSlow: it does not arrive in time.
            ClientLeft: the client went away.
        """
        self.refuse_declared_length()
        body = self._arrived() if self._arrived is not None else None
        if body is not None:
            self._over = True
            self._count(len(body))
            return body
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._in_time(self._receive())
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message.get("body", b""))
            self._count(len(parts[-1]))
            more = message.get("more_body", False)
        self._over = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def refuse_declared_length(self) -> None:
        """Refuse a body that announces itself as too long.

        Raises:
            PayloadTooLarge: before a byte of it was read.
        """
        if self._declared is not None and self._declared > self._limits.max_bytes:
            raise self._too_large(f"the request body has {self._declared} bytes")

    def parts(self) -> AsyncGenerator[bytes]:
        """Give the body part by part while `watch()` runs; call once, before watching."""
        slot: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._slot = slot
        return self._parts(slot)

    async def _parts(self, slot: asyncio.Queue[bytes | None]) -> AsyncGenerator[bytes]:
        try:
            while (part := await self._in_time(slot.get())) is not None:
                self._count(len(part))
                yield part
        except AdmissionError as failure:
            self.failure = failure
            raise
        finally:
            self._slot = None
            with suppress(asyncio.QueueEmpty):
                slot.get_nowait()

    async def watch(self) -> None:
        """Return when the client has left; hand body parts to `parts()` meanwhile."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            self._over = self._over or not message.get("more_body", False)
            if self._slot is None:
                continue
            if part := message.get("body", b""):
                await self._slot.put(part)
            if not message.get("more_body", False) and self._slot is not None:
                await self._slot.put(None)

    async def discard(self) -> None:
        """Throw away, for a moment, what the client still sends.

        Closing a connection with unread bytes resets it, and the client might lose the answer
        that says why.
        """
        try:
            async with asyncio.timeout(_LINGERING_SECONDS):
                while not self._over:
                    message = await self._receive()
                    more = message.get("more_body", False)
                    self._over = message["type"] == "http.disconnect" or not more
        except TimeoutError:
            pass

    async def _in_time(self, arrival: Awaitable[_T]) -> _T:
        """Await bytes of the client; only such waiting counts, not that of a slow backend."""
        limit = self._limits.grace + self._received / self._limits.min_rate
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, limit - self._waited)):
                return await arrival
        except TimeoutError:
            raise BodyTooSlow(
                f"only {self._received} bytes of the request body arrived in {limit:.0f} s; "
                f"at least {self._limits.min_rate:.0f} bytes per second are expected"
            ) from None
        finally:
            self._waited += time.monotonic() - began

    def _count(self, size: int) -> None:
        self._received += size
        if self._received > self._limits.max_bytes:
            raise self._too_large("the request body goes on")

    def _too_large(self, what: str) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"{what}; the limit is {self._limits.max_bytes} bytes "
            "(VLLM_ADMISSION_MAX_REQUEST_BYTES)"
        )
