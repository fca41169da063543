"""Copies of what passes, within a budget of memory for the whole process."""

from __future__ import annotations

from app.relay.inline.outcome import Skipped


class Budget:
    """Bytes that may be kept at a time, of all exchanges together."""

    def __init__(self, limit: int) -> None:
        """Allow `limit` bytes."""
        self.limit = limit
        self.used = 0


class Recording:
    """The bytes of one exchange.

    It has users, at first one; when the last lets go, its bytes return to the budget.
    """

    def __init__(self, budget: Budget, request: bytes) -> None:
        """Keep `request`; `refused` says at once if even that is too much."""
        self.request = request
        self.refused: Skipped | None = None
        self._budget = budget
        self._parts: list[bytes] = []
        self._size = 0
        self._users = 1
        self._take(len(request))

    def add(self, data: bytes) -> None:
        """Keep `data`, or set `refused` and forget what was kept of the response."""
        if self._take(len(data)):
            self._parts.append(data)
        else:
            self._parts.clear()

    def response(self) -> bytes:
        """Give the response so far."""
        return b"".join(self._parts)

    def share(self) -> None:
        """Count one more user."""
        self._users += 1

    def let_go(self) -> None:
        """Count one user less."""
        self._users -= 1
        if self._users == 0:
            self._budget.used -= self._size
            self._size = 0
            self._parts.clear()

    def _take(self, size: int) -> bool:
        if self.refused is None and self._budget.used + size > self._budget.limit:
            alone = self._size + size > self._budget.limit
            self.refused = Skipped.TOO_LARGE if alone else Skipped.BUFFER_FULL
        if self.refused is not None:
            return False
        self._budget.used += size
        self._size += size
        return True
