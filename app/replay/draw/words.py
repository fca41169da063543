"""Splitting 64-bit seeds and positions into the 32-bit words that the generators take."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def split(value: int | NDArray[np.integer]) -> tuple[Words, Words]:
    """Give the low and the high word of the two's complement of `value`.

    An integer of any size wraps modulo 2**64, as in the engine's int64 seed; the words of an
    integer have shape (1,), those of an array its shape.
    """
    if isinstance(value, np.ndarray):
        wide = value.astype(np.uint64, casting="unsafe")
    else:
        wide = np.array([value & 0xFFFFFFFFFFFFFFFF], np.uint64)
    return (wide & _LOW).astype(np.uint32), (wide >> _HALF).astype(np.uint32)
