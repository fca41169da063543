"""Numbers read many at a time are those that Python reads, to the last bit."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.replay.wire.decimals import decimals, digit_run, digits_value


def words_of(texts: list[bytes], count: int) -> NDArray[np.uint64]:
    padded = b"".join(text.ljust(8 * count, b",")[: 8 * count] for text in texts)
    return np.frombuffer(padded, np.uint64).reshape(len(texts), count)


def leading_digits(text: bytes) -> bytes:
    return text[: len(text) - len(text.lstrip(b"0123456789"))]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=8), min_size=1, max_size=50))
def test_digits_are_counted_up_to_the_first_other_byte(texts: list[bytes]) -> None:
    digits, count = digit_run(words_of(texts, 1)[:, 0])
    assert count.tolist() == [len(leading_digits(text)) for text in texts]
    assert digits_value(digits, count).tolist() == [
        int(leading_digits(text) or b"0") for text in texts
    ]


def read(texts: list[str]) -> tuple[list[float], list[bool]]:
    """Numbers `whole.fraction`, and which of them are certain."""
    whole = np.array([int(text.partition(".")[0]) for text in texts], np.uint64)
    fractions = [text.partition(".")[2].encode() for text in texts]
    values, length, certain = decimals(whole, list(words_of(fractions, 3).T))
    for fraction, digits, sure in zip(fractions, length.tolist(), certain, strict=True):
        assert not sure or digits == len(fraction)
    return values.tolist(), certain.tolist()


def check(texts: list[str]) -> int:
    """Compare those that are certain with Python; gives how many are."""
    values, certain = read(texts)
    for text, value, sure in zip(texts, values, certain, strict=True):
        assert not sure or struct.pack("<d", value) == struct.pack("<d", float(text)), text
    return sum(certain)


DECIMAL = st.from_regex(r"(0|[1-9][0-9]{0,6})\.[0-9]{1,30}", fullmatch=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(DECIMAL, min_size=1))
def test_any_decimal_is_rounded_correctly_or_left_open(texts: list[str]) -> None:
    check(texts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.0001220703125, 8192.0, width=32), min_size=1))
def test_float32_numbers_as_python_writes_them_are_certain(values: list[float]) -> None:
    assert check([repr(value) for value in values]) == len(values)


def test_random_doubles_are_all_but_always_certain() -> None:
    rng = np.random.default_rng(0)
    values = [*rng.uniform(0, 30, 20_000).tolist(), *rng.exponential(1, 20_000).tolist()]
    texts = [text for value in values if "e" not in (text := repr(value))]
    assert check(texts) > 0.999 * len(texts)


def test_middles_between_two_doubles_are_left_open() -> None:
    texts = []
    for value in np.random.default_rng(1).uniform(2**22, 9e6, 2_000).tolist():
        # Doubles here are 2**-30 apart: a middle has 31 binary and so 31 decimal places, of which
        # 15 leave it close, and the next double's neighbourhood is as close.
        middle = int(value) * 2**31 + 2 * int(value % 1 * 2**30) + 1
        texts.append(f"{middle // 2**31}.{middle % 2**31 * 10**12 // 2**31:012d}")
    assert check(texts) > 0
    exact = [f"{n}.5" for n in (2**52 // 10**9, 4194304)]
    assert check(exact) == len(exact)
    assert check([f"{2**23 - 1}.{5**23 + 2 * n:023d}"[:30] for n in range(50)]) >= 0


def test_numbers_next_to_a_middle_are_not_guessed() -> None:
    half = math.ulp(1.0) / 2
    # 1 + half a unit is 1.00000000000000011102230246251565404…: 22 places leave it too close.
    texts = ["1.0000000000000001110223", "1.000000000000000111022", "1.0000000000000001110224"]
    values, certain = read(texts)
    for text, value, sure in zip(texts, values, certain, strict=True):
        assert not sure or value == float(text)
    assert float(texts[0]) in (1.0, 1.0 + 2 * half)


@pytest.mark.parametrize(
    "text", ["0.0", "9999.0", "0.1", "1.8047446012496948", "0." + "0" * 21 + "1"]
)
def test_common_numbers_are_certain(text: str) -> None:
    assert check([text]) == 1


@pytest.mark.parametrize("text", ["0." + "0" * 22 + "1", "9999999." + "9" * 20, "1." + "1" * 24])
def test_numbers_with_too_many_digits_are_left_open(text: str) -> None:
    assert check([text]) == 0
