"""Random ids. A request needs several, and asking the system for each costs more than using it."""

from __future__ import annotations

import os
from typing import Final

_AT_ONCE: Final = 4096


class Entropy:
    """Octets of the system's generator, fetched many at a time and each given once.

    For one thread: two might get the same.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._octets = b""
        self._taken = 0

    def take(self, size: int) -> bytes:
        """Give `size` octets, at most 4,096."""
        begin = self._taken
        self._taken = end = begin + size
        if end > len(self._octets):
            self._octets = os.urandom(_AT_ONCE)
            begin, self._taken = 0, size
            end = size
        return self._octets[begin:end]

    def forget(self) -> None:
        """Drop what was fetched: a forked process must not give the same."""
        self._octets, self._taken = b"", 0


_entropy: Final = Entropy()
os.register_at_fork(after_in_child=_entropy.forget)


def random_hex(size: int) -> str:
    """Give `size` random octets as lower-case hex digits."""
    return _entropy.take(size).hex()
