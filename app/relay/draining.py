"""A server that ends well: not before the requests it has taken on have their answers."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Awaitable, Callable

import uvicorn

_LOOK_AGAIN_SECONDS = 0.05
_AT_LEAST_SECONDS = 1


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which closes its listener only after `drain` has returned.

    A second interrupt ends it at once.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]], longest: float
    ) -> None:
        """Await `drain()` between the signal and the end.

        Args:
            config: as uvicorn takes it.
            drain: makes new requests be refused and waits for those in flight.
            longest: seconds for that and for whatever else is still answered.
        """
        super().__init__(config)
        self._drain = drain
        self._longest = longest

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then end as uvicorn does."""
        began = time.monotonic()
        draining = asyncio.ensure_future(self._drain())
        try:
            while not draining.done() and not self.force_exit:
                await asyncio.wait({draining}, timeout=_LOOK_AGAIN_SECONDS)
        finally:
            draining.cancel()
        left = self._longest - (time.monotonic() - began)
        self.config.timeout_graceful_shutdown = max(_AT_LEAST_SECONDS, math.ceil(left))
        await super().shutdown(sockets)
