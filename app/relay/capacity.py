"""How many requests are relayed at a time, and how many may wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from app.relay.faults import Overloaded


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """What is taken on at a time.

    Attributes:
        in_flight: requests relayed at a time; None is without a bound.
        queue: requests that may wait beyond that.
        wait: seconds one may wait.
    """

    in_flight: int | None = None
    queue: int = 0
    wait: float = 5.0


class Capacity:
    """Places for requests, given in the order of asking. Use it inside one event loop."""

    def __init__(self, limits: CapacityLimits) -> None:
        """Begin with every place free."""
        self.limits = limits
        self.taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether the next to ask has to wait."""
        limit = self.limits.in_flight
        return limit is not None and (self.taken >= limit or bool(self._queue))

    async def take(self) -> None:
        """Take a place; whoever got one calls `give_back`.

        Raises:
            Overloaded: too many wait already, or the wait was too long.
        """
        if not self.full:
            self.taken += 1
            return
        if len(self._queue) >= self.limits.queue:
            raise Overloaded(
                f"{self.taken} requests are in flight and {len(self._queue)} wait, which is all "
                "that VLLM_ADMISSION_MAX_IN_FLIGHT and VLLM_ADMISSION_MAX_QUEUE allow"
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            async with asyncio.timeout(self.limits.wait):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.give_back()  # it was given in the very moment of giving up
            else:
                with suppress(ValueError):
                    self._queue.remove(place)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"the request waited {self.limits.wait:g} s for its turn "
                    "(VLLM_ADMISSION_QUEUE_TIMEOUT)"
                ) from None
            raise

    def give_back(self) -> None:
        """Hand a place to whoever waits longest, or free it."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.taken -= 1
