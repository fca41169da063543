"""Whether a backend is worth asking: closed, open, or half open while it proves itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """What a breaker lets through: everything, nothing, or one request at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """When a breaker opens and closes.

    Attributes:
        failures: in a row without an answer, after which it opens.
        open_seconds: that it stays open before one request may try.
        successes: in a row that close it again.
    """

    failures: int = 5
    open_seconds: float = 5.0
    successes: int = 2


class Breaker:
    """Counts what becomes of one backend's requests.

    Only a request without any answer is a failure; every answer, a 500 too, is a success, for
    it is the backend's to give. `admits()` is asked before a request, and then exactly one of
    `succeeded`, `failed` and `undecided` is told.
    """

    def __init__(self, limits: BreakerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin closed; `clock` gives seconds."""
        self._limits = limits
        self._clock = clock
        self._failures = 0
        self._successes = 0
        self._opened: float | None = None
        self._trying = False

    @property
    def state(self) -> BreakerState:
        """Where it stands now."""
        if self._opened is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self.retry_after <= 0 else BreakerState.OPEN

    @property
    def retry_after(self) -> float:
        """Seconds until a request may try; 0 where one may now."""
        if self._opened is None:
            return 0.0
        return max(0.0, self._opened + self._limits.open_seconds - self._clock())

    @property
    def due(self) -> bool:
        """Whether it is half open and no request tries just now."""
        return self.state is BreakerState.HALF_OPEN and not self._trying

    def admits(self) -> bool:
        """Whether a request may go; in the half-open state it is then the one that tries."""
        if self._opened is None:
            return True
        if not self.due:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        """Note an answer."""
        self._failures = 0
        if self._opened is None:
            return
        self._trying = False
        self._successes += 1
        if self._successes >= self._limits.successes:
            self._opened = None

    def failed(self) -> None:
        """Note that no answer came."""
        self._failures += 1
        if self._opened is not None or self._failures >= self._limits.failures:
            self._opened = self._clock()
            self._successes = 0
        self._trying = False

    def undecided(self) -> None:
        """Note that the client left, or broke off its body, before an answer could come."""
        self._trying = False
