"""The seed of a request id, and where a body takes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_DOMAIN = b"vllm-admission seed 1\0"
_BITS = 52


@dataclass(frozen=True, slots=True)
class Seeded:
    """A body that has a seed now."""

    body: bytes
    seed: int


@dataclass(frozen=True, slots=True)
class SeedPlace:
    """Where a body takes a seed: `before` and the seed stand for what is from `start` to `end`."""

    start: int
    end: int
    before: bytes

    def seeded(self, body: bytes, request_id: str) -> Seeded:
        """Put the seed of `request_id` there; every other byte stays."""
        seed = derive_seed(request_id)
        member = self.before + str(seed).encode()
        return Seeded(body[: self.start] + member + body[self.end :], seed)


def derive_seed(request_id: str) -> int:
    """Give the seed of a request id: 0 to 2**52 - 1.

    The first 52 bits of the SHA-256 of `vllm-admission seed 1`, a zero byte, and the id. So
    seed + n - 1 stays within int64, as choice n - 1 needs it, and within the integers that a
    JSON reader with doubles keeps exactly.
    """
    digest = hashlib.sha256(_DOMAIN + request_id.encode()).digest()
    return int.from_bytes(digest[:8]) >> (64 - _BITS)
