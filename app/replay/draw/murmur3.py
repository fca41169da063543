"""The MurmurHash3 draw of vLLM from 0.31 on.

Source: `v1/worker/gpu/sample/gumbel.py::murmur3_hash32` and `gumbel_noised_argmax`. The hash
is Austin Appleby's MurmurHash3_x86_32 over the words seed low, seed high, position low, token
id, with the domain as its seed; the high word of the position is not mixed in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.replay.draw.words import Words, split

# A second, independent word for fp64 draws comes from another domain.
_DOMAINS = (np.uint32(0), np.uint32(0x9E3779B9))

_LENGTH = np.uint32(16)
_SPACING53 = 2.0**-53
_SERIES = tuple(np.float32(1.0 / order) for order in (7, 6, 5, 4, 3, 2, 1))
_SERIES_LAST = np.float32(1.0 / 8.0)
_SERIES_LIMIT = np.float32(0.25)
_DIRECT_FLOOR = np.float32(5.960464477539063e-08)


def row_keys(
    seed: int | NDArray[np.integer], positions: NDArray[np.int64], *, domain: int = 0
) -> Words:
    """Give the hash state of each row before the token id is mixed in, (n,)."""
    low, high = split(seed)
    state = _mix(_mix(_DOMAINS[domain], low), high)
    return _mix(state, split(positions)[0])


def gumbel32(keys: Words, token_ids: Words) -> NDArray[np.float32]:
    """Give the fp32 noise of each (row key, token id) pair."""
    u = _uniform32(_finish(keys, token_ids))
    with np.errstate(divide="ignore"):
        noise: NDArray[np.float32] = -np.log(-_log_one_minus(u))
    return noise


def gumbel64(keys: tuple[Words, Words], token_ids: Words) -> NDArray[np.float64]:
    """Give the fp64 noise; `keys` are the row keys of both domains (`--use-fp64-gumbel`)."""
    low = _finish(keys[0], token_ids).astype(np.uint64)
    high = _finish(keys[1], token_ids).astype(np.uint64)
    wide = ((high << np.uint64(32)) | low) >> np.uint64(11)
    u = (wide.astype(np.float64) + 0.5) * _SPACING53
    # The largest midpoint rounds to one, whose logarithm would be no noise at all.
    u = np.where(u == 1.0, u - _SPACING53, u)
    noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def _mix(state: Words | np.uint32, word: Words) -> Words:
    word = _rotate(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotate(state ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotate(word: Words, bits: int) -> Words:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _finish(keys: Words, token_ids: Words) -> Words:
    h = _mix(keys, token_ids) ^ _LENGTH
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


def _uniform32(words: Words) -> NDArray[np.float32]:
    high = (words >> np.uint32(16)).astype(np.float32)
    low = (words & np.uint32(0xFFFF)).astype(np.float32)
    return high * np.float32(2.0**-16) + (low + np.float32(0.5)) * np.float32(2.0**-32)


def _log_one_minus(u: NDArray[np.float32]) -> NDArray[np.float32]:
    """ln(1 - u) as the kernel has it: a degree-8 series below 1/4, the logarithm above."""
    series = np.full_like(u, _SERIES_LAST)
    for coefficient in _SERIES:
        series = coefficient + u * series
    direct: NDArray[np.float32] = np.log(np.maximum(np.float32(1.0) - u, _DIRECT_FLOOR))
    return np.where(u < _SERIES_LIMIT, -u * series, direct)
