"""The Philox draw of vLLM up to 0.30, and the acceptance draw of every version.

Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC'11). How vLLM keys it: `v1/worker/gpu/sample/gumbel.py::gumbel_noised_argmax`; the
conversions to a uniform are Triton's `tl.rand`.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from app.replay.draw.words import Words, split

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_INCREMENTS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
_HALF = np.uint64(32)
_HIGH = 1 if sys.byteorder == "little" else 0

# Triton's scale is a little under 2**-31, so that the largest draw stays below one; the same
# number is the floor that keeps the logarithm finite.
_SCALE32 = np.float32(4.6566127342e-10)
_SCALE64 = 2.0**-64
_FLOOR64 = 2.2250738585072014e-308


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> list[Words]:
    """Give the four output words of Philox4x32-10; all arrays broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _halves(np.multiply(c0, _MULTIPLIERS[0], dtype=np.uint64))
        high1, low1 = _halves(np.multiply(c2, _MULTIPLIERS[1], dtype=np.uint64))
        c0 = high1 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1, c3 = low1, low0
        k0 = k0 + _KEY_INCREMENTS[0]
        k1 = k1 + _KEY_INCREMENTS[1]
    return [c0, c1, c2, c3]


def row_keys(seed: int | NDArray[np.integer], positions: NDArray[np.int64]) -> Words:
    """Give the second-stage key of each row, (n,): `tl.randint(seed, position)`."""
    low, high = split(positions)
    zero = np.zeros(1, np.uint32)
    return philox4x32((low, high, zero, zero), split(seed))[0]


def gumbel32(keys: Words, token_ids: Words) -> NDArray[np.float32]:
    """Give the fp32 noise of each (row key, token id) pair."""
    u = _uniform32(_second_stage(keys, token_ids)[0])
    with np.errstate(divide="ignore"):
        noise: NDArray[np.float32] = -np.log(-np.log1p(-u))
    return noise


def gumbel64(keys: Words, token_ids: Words) -> NDArray[np.float64]:
    """Give the fp64 noise of each (row key, token id) pair (`--use-fp64-gumbel`)."""
    low, high = _second_stage(keys, token_ids)[:2]
    wide = (high.astype(np.uint64) << _HALF) | low
    u = np.maximum(wide.astype(np.float64) * _SCALE64, _FLOOR64)
    with np.errstate(divide="ignore"):
        noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def acceptance_uniform(
    seed: int | NDArray[np.integer], positions: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Give the uniform that decides whether a drafted token is accepted, (n,).

    Single-stage, in every version: `v1/worker/gpu/spec_decode/rejection_sampler.py`.
    """
    return _uniform32(row_keys(seed, positions))


def _second_stage(keys: Words, token_ids: Words) -> list[Words]:
    zero = np.zeros(1, np.uint32)
    return philox4x32((token_ids, zero, zero, zero), (keys, zero))


def _halves(product: NDArray[np.uint64]) -> tuple[Words, Words]:
    # Views, not shifts: half the memory traffic of what is the hot loop.
    words = product.view(np.uint32)
    return words[_HIGH::2], words[1 - _HIGH :: 2]


def _uniform32(words: Words) -> NDArray[np.float32]:
    signed = np.ascontiguousarray(words).view(np.int32)
    folded = signed ^ (signed >> np.int32(31))
    u: NDArray[np.float32] = np.maximum(folded.astype(np.float32) * _SCALE32, _SCALE32)
    return u
