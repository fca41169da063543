"""Reading many decimal numbers from eight-byte words, exactly.

Words are little-endian: the first character is the lowest byte. Digits are counted and added up
eight at a time as in Lemire, "Quickly parsing eight digits", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Counts = NDArray[np.uint8]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

U64 = np.uint64
_ZEROS: Final = U64(0x3030303030303030)
_OVER_NINE: Final = U64(0x7676767676767676)
_HIGH: Final = U64(0x8080808080808080)
_ONES: Final = U64(0x0F0F0F0F0F0F0F0F)
# Integers below are exact in 64 bits with room for a rounding of the estimate.
_LARGEST: Final = 9.0e18
# 10**22 is the last power of ten that a double holds exactly.
_MOST_DECIMALS: Final = 22
_POWERS: Final = np.array([10**n for n in range(19)], np.uint64)
_SCALES: Final = np.array([10.0**n for n in range(_MOST_DECIMALS + 1)], np.float64)
# Splits a double in two halves whose products are exact.
_SPLITTER: Final = 134217729.0
# Far above the error of the second term of a quotient, far below what decides a rounding.
_DOUBT: Final = 2.0**-40


def digit_run(words: Words) -> tuple[Words, Counts]:
    """Count the digits at the beginning of each word, (m,).

    Returns:
        The words with digits as numbers 0 to 9, and how many there are, 0 to 8.
    """
    digits = words ^ _ZEROS
    other = ((digits + _OVER_NINE) | digits) & _HIGH
    # Bits below the lowest mark, which carries have not reached; all of them without a mark.
    below = (other - U64(1)) & ~other
    return digits, np.bitwise_count(below) >> np.uint8(3)


def digits_value(digits: Words, count: Counts) -> Words:
    """Add up the first `count` digits, 0 to 8, of each word, (m,)."""
    # numpy defines a shift by 64 as zero.
    value = digits << (np.uint8(64) - (count << np.uint8(3)))
    value = ((value & _ONES) * U64(2561)) >> U64(8)
    value = ((value & U64(0x00FF00FF00FF00FF)) * U64(6553601)) >> U64(16)
    return ((value & U64(0x0000FFFF0000FFFF)) * U64(42949672960001)) >> U64(32)


def decimals(whole: Words, words: Sequence[Words]) -> tuple[Floats, Counts, Flags]:
    """Read numbers `whole.fraction`, each correctly rounded.

    Args:
        whole: digits before the point as a number below 10**7, (m,).
        words: three from the first digit after the point on, (m,) each.

    Returns:
        The numbers, (m,); the number of digits after the point, (m,), 24 for that or more; and
        which are certain: the others have too many digits, or lie too close to the middle
        between two doubles.
    """
    digits, length = digit_run(words[0])
    value = digits_value(digits, length)
    # Below 2**53, where one division is exact to the last place.
    power = _POWERS.take(length)
    result = (whole * power + value).astype(np.float64) / power.astype(np.float64)
    certain = length > 0
    longer = np.flatnonzero(length == 8)
    if len(longer):
        more = _long(whole[longer], value[longer], words[1][longer], words[2][longer])
        result[longer], length[longer], certain[longer] = more
    return result, length, certain


def _long(whole: Words, first: Words, second: Words, third: Words) -> tuple[Floats, Counts, Flags]:
    """Read numbers of eight digits or more after the point, the first eight already read."""
    digits, count = digit_run(second)
    value = digits_value(digits, count)
    more, rest = digit_run(third)
    rest = np.where(count == 8, rest, np.uint8(0))
    length = np.uint8(8) + count + rest
    used = np.minimum(length, _MOST_DECIMALS)
    scale = _SCALES[used]
    # What the digits come to, at most: larger numbers do not fit in 64 bits.
    leading = (whole * _POWERS[8] + first + U64(1)).astype(np.float64) * _SCALES[used - 8]
    mantissa = whole * _POWERS[np.minimum(used, 18)]
    mantissa += (first * _POWERS[count] + value) * _POWERS[rest] + digits_value(more, rest)
    result, sure = _divide(mantissa, scale)
    return result, length, sure & (length <= _MOST_DECIMALS) & (leading < _LARGEST)


def _divide(mantissa: Words, scale: Floats) -> tuple[Floats, Flags]:
    """Divide integers below 2**63 by powers of ten; says which quotients are surely rounded.

    The quotient is taken to twice the precision of a double, with an exact product (Dekker, "A
    floating-point technique for extending the available precision", 1971).
    """
    high = mantissa.astype(np.float64)
    low = (mantissa - high.astype(np.uint64)).view(np.int64).astype(np.float64)
    first = high / scale
    product = first * scale
    a, b = _upper(first), _upper(scale)
    c, d = first - a, scale - b
    error = ((a * b - product) + a * d + c * b) + c * d
    second = (((high - product) - error) + low) / scale
    doubt = second * _DOUBT
    result = first + second
    sure: Flags = (first + (second - doubt)) == (first + (second + doubt))
    return result, sure


def _upper(values: Floats) -> Floats:
    """The upper half of the bits of each number (Veltkamp)."""
    large = values * _SPLITTER
    return large - (large - values)
