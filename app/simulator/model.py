"""A deterministic language model small enough for tests: logits from hashed tables.

The logits of a step depend on the last three tokens and on the position. They are sums of
integers scaled by a power of two, hence the same on every machine, and coarse enough that
ties happen as they do with a bfloat16 head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.simulator.tokenizer import END_TOKEN, VOCABULARY, encode

CONTEXT = 3
_POSITIONS = 256
_STEP = np.float32(1 / 16)
_END_BIAS = -48  # sixteenths: an answer ends now and then, not at once
_TEXT_BIAS = {"aeinorstlu ": 112, "bcdfghjkmpvwyz": 88, ".,": 64}  # so that text is readable


def _hash(count: int, stream: int, seed: int) -> NDArray[np.uint64]:
    """Give `count` words of SplitMix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        start = np.uint64((seed << 32) + (stream << 24))
        word = (np.arange(count, dtype=np.uint64) + start) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))


def _table(rows: int, stream: int, seed: int) -> NDArray[np.int16]:
    """Give a table of bell-shaped integers, (rows, vocabulary), mean 0, deviation near 26."""
    words = _hash(rows * VOCABULARY, stream, seed)
    total = words.view(np.uint8).reshape(-1, 8).sum(axis=1, dtype=np.int16)
    table: NDArray[np.int16] = ((total - 1020) >> 3).reshape(rows, VOCABULARY)
    return table


@lru_cache(maxsize=4)
def _tables(seed: int) -> tuple[tuple[NDArray[np.int16], ...], NDArray[np.int16]]:
    recent = tuple(_table(VOCABULARY, stream, seed) for stream in range(CONTEXT))
    position = _table(_POSITIONS, CONTEXT, seed)
    for letters, bias in _TEXT_BIAS.items():
        for letter in letters:
            position[:, encode(letter)] += np.int16(bias)
    position[:, END_TOKEN] += _END_BIAS
    for table in (*recent, position):
        table.flags.writeable = False
    return recent, position


class ToyModel:
    """The model; two of the same seed are equal, in every process and on every machine."""

    vocabulary = VOCABULARY
    end_token = END_TOKEN

    def __init__(self, seed: int = 0) -> None:
        self._recent, self._position = _tables(seed)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Give the next token's logits after `tokens` (at least one), (1024,), float32."""
        total = self._position[(len(tokens) - 1) % _POSITIONS].copy()
        for age, table in enumerate(self._recent, start=1):
            if len(tokens) >= age:
                total += table[tokens[-age]]
        logits: NDArray[np.float32] = total.astype(np.float32) * _STEP
        return logits
