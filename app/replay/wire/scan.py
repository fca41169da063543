"""Reading regular logprobs straight from the bytes of a case, many at a time.

A response has one object for each token and candidate, hundreds of thousands, and they all look
the same. `cut` finds the lists whose objects are exactly as vLLM or `json.dumps` writes them,
reads them with array operations and takes them out of the text; the decoder does the rest.
Every byte of such a list is compared with what it must be, so that the result is that of the
decoder to the last bit; a list that is irregular anywhere is left in the text for the decoder.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.replay.ragged import Ragged, offsets_of
from app.replay.wire.decimals import Counts, decimals, digit_run, digits_value

U64 = np.uint64

# Shorter texts are decoded faster than looked at.
_LEAST_BYTES: Final = 64 * 1024
# A list of fewer objects, as in the chunks of a stream, ends the search.
_LEAST_OBJECTS: Final = 512
# Objects at a time: their arrays stay in the processor's cache.
_BLOCK: Final = 1 << 14
_CONTENT: Final = re.compile(rb'"content":( ?)\[')
_MARKER: Final = "\ue000logprobs:"
_MARKER_WRITINGS: Final = ("\ue000".encode(), b"\\ue000", b"\\uE000")
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
# Bytes at a time where single ones are looked for.
_PIECE: Final = 1 << 17
# A point as digits are: less what a zero is written as.
_POINT: Final = U64(ord(".") ^ ord("0"))
_LONGEST_NUMBER: Final = 32
# Bytes from an object's beginning on that may be looked at together with it.
_MARGIN: Final = 128


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """The logprobs of n tokens with c candidates in all, as in `Candidates`."""

    named: NDArray[np.int64]
    sampled: NDArray[np.float64]
    ids: Ragged
    logprobs: NDArray[np.float64]
    ranks: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.named)


class _Constant:
    """Bytes that must stand somewhere, as masked words."""

    def __init__(self, text: bytes) -> None:
        self.length = len(text)
        self.words = -(-len(text) // 8)
        size = 8 * self.words
        self._text = np.frombuffer(text.ljust(size, b"\0"), U64)
        self._mask = np.frombuffer((b"\xff" * len(text)).ljust(size, b"\0"), U64)

    def begins(self, word: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Where a word, (m,), begins with its first eight bytes."""
        equal: NDArray[np.bool_] = (word & self._mask[0]) == self._text[0]
        return equal

    def matches(
        self, words: NDArray[np.uint64] | Sequence[NDArray[np.uint64]]
    ) -> NDArray[np.bool_]:
        """Where words, in rows of shape (m, k) or one after another, begin with it."""
        columns = words.T if isinstance(words, np.ndarray) else words
        equal = self.begins(columns[0])
        for at in range(1, self.words):
            equal &= (columns[at] & self._mask[at]) == self._text[at]
        return equal


class _Layout:
    """The text between the values of one style of writing."""

    def __init__(self, *, spaced: bool, named: bool) -> None:
        """Make the constants.

        Args:
            spaced: with a space after colons and commas, as `json.dumps` writes.
            named: `"token":"token_id:5"` and `"bytes":null`, as up to 0.31; else `"token_id":5`
                and `"rank":1`.
        """
        colon, comma = (b": ", b", ") if spaced else (b":", b",")
        opening = b'{"token"' + colon + b'"token_id:' if named else b'{"token_id"' + colon
        self.opening = _Constant(opening)
        closing = b'"' if named else b""
        self.logprob = _Constant(closing + comma + b'"logprob"' + colon)
        self.ranked = not named
        rest = comma + (b'"bytes"' + colon + b"null" if named else b'"rank"' + colon)
        self.rest = _Constant(rest)
        self.candidates = _Constant(comma + b'"top_logprobs"' + colon + b"[")
        self.next_candidate = _Constant(b"}" + comma)
        self.next_entry = _Constant(b"}]}" + comma)
        self.end = _Constant(b"}]}]")
        self.start = opening


# The spaced ones begin like the others and come first.
_LAYOUTS: Final = tuple(
    _Layout(spaced=spaced, named=named) for spaced in (True, False) for named in (False, True)
)


class _Text:
    """A text, readable a few words at a time at any places."""

    def __init__(self, data: bytes, base: int = 0) -> None:
        """Take bytes that begin at the place `base`."""
        self._data = data
        self._base = base

    def words(self, places: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
        """Read `count` words at each of m places, (m, count), little-endian."""
        size = 8 * count
        # Void items have no alignment, so that they may overlap and begin anywhere.
        windows: NDArray[np.void] = np.ndarray(
            (len(self._data) - size + 1,), f"V{size}", self._data, 0, (1,)
        )
        if self._base:
            places = places - self._base
        return windows[places].view(U64).reshape(len(places), count)

    def number(self, place: int) -> tuple[float, int] | None:
        """Read the number at a place as the decoder does; gives also its length."""
        found = _NUMBER.match(self._data, place - self._base)
        if found is None or len(found[0]) > _LONGEST_NUMBER:
            return None
        try:
            return msgspec.json.decode(found[0], type=float), len(found[0])
        except msgspec.DecodeError:
            return None


def cut(data: bytes) -> tuple[bytes, dict[str, Scanned]]:
    """Take regular lists of logprobs out of a text that may be JSON.

    Returns:
        The text with a marker in place of each list that was read, `[{"token": marker}]`, and
        what was read by marker. It is valid JSON if and only if `data` is: what was taken out
        was a value where a value may stand.
    """
    scans: dict[str, Scanned] = {}
    if len(data) < _LEAST_BYTES or sys.byteorder != "little":
        return data, scans
    parts: list[bytes] = []
    kept = 0
    braces: NDArray[np.integer[Any]] = np.empty(0, np.int64)
    while found := _CONTENT.search(data, kept):
        start = found.end()
        layout = next((x for x in _LAYOUTS if data.startswith(x.start, start)), None)
        if layout is None:
            break
        if not scans:
            braces = _places(data, ord("{"))
        scanned = _scan(data, braces[np.searchsorted(braces, start) :], layout)
        if scanned is None or len(scanned[0].logprobs) < _LEAST_OBJECTS:
            break
        marker = f"{_MARKER}{len(scans)}"
        scans[marker], end = scanned
        parts += (data[kept : start - 1], f'[{{"token":"{marker}"}}]'.encode())
        kept = end
    if not scans:
        return data, scans
    parts.append(data[kept:])
    # Nobody else may have written what begins a marker, plainly or escaped.
    if any(writing in part for part in parts[::2] for writing in _MARKER_WRITINGS):
        return data, {}
    return b"".join(parts), scans


def _places(data: bytes, wanted: int) -> NDArray[np.integer[Any]]:
    """Give the places of a byte, in order."""
    values = np.frombuffer(data, np.uint8)
    kind = np.int32 if len(data) < 2**31 else np.int64
    found = []
    for first in range(0, len(values), _PIECE):
        places = np.flatnonzero(values[first : first + _PIECE] == wanted)
        places += first
        found.append(places.astype(kind))
    return np.concatenate(found)


def _scan(
    data: bytes, braces: NDArray[np.integer[Any]], layout: _Layout
) -> tuple[Scanned, int] | None:
    """Read a list that begins with the first brace; gives it and the place after its end."""
    blocks: list[_Block] = []
    # The first object is an entry, as one after the end of another's candidates is.
    begins = True
    for text, part, following in _blocks(data, braces):
        block = _read(text, part, following, layout)
        if block is None:
            return None
        if not np.array_equal(block.is_entry, np.append(begins, block.closes[:-1])):
            return None
        blocks.append(block)
        begins = bool(block.closes[-1])
        if block.end is not None:
            return _collect(blocks), block.end
    return None


def _blocks(
    data: bytes, braces: NDArray[np.integer[Any]]
) -> Iterator[tuple[_Text, NDArray[np.int64], NDArray[np.int64]]]:
    """Give texts, the braces to read from each, and the brace that follows each of these."""
    beyond = len(data) + _MARGIN
    safe = int(np.searchsorted(braces, len(data) - _MARGIN))
    text = _Text(data)
    for first in range(0, len(braces), _BLOCK):
        at = braces[first : first + _BLOCK].astype(np.int64)
        following = np.append(at[1:], braces[first + _BLOCK : first + _BLOCK + 1])
        following = np.append(following, [beyond] * (len(at) - len(following)))
        inside = max(min(safe - first, len(at)), 0)
        if inside:
            yield text, at[:inside], following[:inside]
        if inside < len(at):
            # Nothing may be read past the end, so the last objects get some room behind them.
            base = int(at[inside])
            yield _Text(data[base:] + bytes(_MARGIN), base), at[inside:], following[inside:]


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Some objects of a list, m of them.

    Attributes:
        ids: (m,).
        numbers: logprobs, (m,).
        is_entry: whether candidates follow it, (m,).
        closes: whether it is the last candidate of its entry, (m,).
        end: place after the list's end, if it is in this block.
        ranks: (m,), or None where the layout has none.
    """

    ids: NDArray[np.int64]
    numbers: NDArray[np.float64]
    is_entry: NDArray[np.bool_]
    closes: NDArray[np.bool_]
    end: int | None
    ranks: NDArray[np.int64] | None


def _read(
    text: _Text, at: NDArray[np.int64], following: NDArray[np.int64], layout: _Layout
) -> _Block | None:
    """Read the objects that begin at braces; None if one before the end is irregular."""
    words = text.words(at, layout.opening.words + 3)
    regular = layout.opening.matches(words)
    digits, width = _integer(_shifted(words, layout.opening.length))
    regular &= width > 0
    ids = digits_value(digits, width).view(np.int64)
    place = at + (layout.opening.length + width.astype(np.int64))
    regular &= layout.logprob.matches(_after(words, layout.opening.length, width, 2))
    place += layout.logprob.length

    numbers, lengths = _numbers(text.words(place, 4))
    rest = text.words(place + lengths, layout.rest.words + 3)
    odd = np.flatnonzero(regular & ~((lengths > 0) & layout.rest.matches(rest)))
    for index in odd.tolist():
        if (number := text.number(int(place[index]))) is not None:
            numbers[index], lengths[index] = number
    place += lengths
    if len(odd):
        regular &= lengths > 0
        rest[odd] = text.words(place[odd], rest.shape[1])
        regular[odd] &= layout.rest.matches(rest[odd])
    place += layout.rest.length
    tail = _shifted(rest, layout.rest.length)
    ranks = None
    if layout.ranked:
        digits, width = _integer(tail)
        ranks = digits_value(digits, width).view(np.int64)
        regular &= width > 0
        place += width
        tail = _after(rest, layout.rest.length, width, 1)[0]

    distance = following - place
    goes_on = (distance == layout.next_candidate.length) & layout.next_candidate.begins(tail)
    closes = (distance == layout.next_entry.length) & layout.next_entry.begins(tail)
    ends = layout.end.begins(tail)
    is_entry = np.zeros(len(at), np.bool_)
    entries = np.flatnonzero(distance == layout.candidates.length)
    is_entry[entries] = layout.candidates.matches(
        text.words(place[entries], layout.candidates.words)
    )
    regular &= is_entry | goes_on | closes | ends
    last = int(np.argmax(ends)) if ends.any() else len(at) - 1
    if not regular[: last + 1].all():
        return None
    part = slice(0, last + 1)
    end = int(place[last]) + layout.end.length if ends.any() else None
    ranks = None if ranks is None else ranks[part]
    return _Block(ids[part], numbers[part], is_entry[part], closes[part], end, ranks)


def _shifted(words: NDArray[np.uint64], start: int) -> NDArray[np.uint64]:
    """The eight bytes from byte `start` on of words in rows, (m,)."""
    word, bits = start // 8, U64(start % 8 * 8)
    if not bits:
        return words[:, word]
    return (words[:, word] >> bits) | (words[:, word + 1] << (U64(64) - bits))


def _after(
    words: NDArray[np.uint64], start: int, width: Counts, count: int
) -> list[NDArray[np.uint64]]:
    """`count` words of eight bytes each that follow `width` bytes, 0 to 8, from `start` on."""
    bits = width.astype(np.uint64) << U64(3)
    rest = U64(64) - bits
    parts = [_shifted(words, start + 8 * at) for at in range(count + 1)]
    # numpy defines a shift by 64 as zero.
    return [np.bitwise_or(parts[at] >> bits, parts[at + 1] << rest) for at in range(count)]


def _integer(word: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], Counts]:
    """Find integers of 1 to 7 digits; gives their digits and how many, 0 where there is none."""
    digits, count = digit_run(word)
    leading_zero = ((digits & U64(0xFF)) == 0) & (count > 1)
    count[leading_zero | (count > 7)] = 0
    return digits, count


def _numbers(words: NDArray[np.uint64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read the numbers that rows of four words begin with, (m, 4).

    Returns:
        The numbers and their lengths, 0 where there is none that can be read here: exponents,
        numbers without a point, and those that are close to where the rounding changes.
    """
    negative = (words[:, 0] & U64(0xFF)) == ord("-")
    digits, count = digit_run(words[:, 0] >> (negative.astype(np.uint64) << U64(3)))
    leading_zero = ((digits & U64(0xFF)) == 0) & (count > 1)
    point = (digits >> (count.astype(np.uint64) << U64(3))) & U64(0xFF)
    # A digit is told apart by its own value: a point is none of 0 to 9.
    dotted = (count > 0) & (count < 7) & ~leading_zero & (point == _POINT)
    before = negative + count + np.uint8(1)
    fraction = _after(words, 0, np.minimum(before, np.uint8(8)), 3)
    values, places, certain = decimals(digits_value(digits, count), fraction)
    values *= 1.0 - 2.0 * negative
    return values, np.where(certain & dotted, before + places, 0).astype(np.int64)


def _collect(blocks: list[_Block]) -> Scanned:
    candidates = [~block.is_entry for block in blocks]
    entry = np.concatenate([block.is_entry for block in blocks])
    counts = np.diff(np.append(np.flatnonzero(entry), len(entry))) - 1
    pairs = list(zip(blocks, candidates, strict=True))
    ranks = [block.ranks[chosen] for block, chosen in pairs if block.ranks is not None]
    ids = np.concatenate([block.ids[chosen] for block, chosen in pairs])
    return Scanned(
        named=np.concatenate([block.ids[block.is_entry] for block in blocks]),
        sampled=np.concatenate([block.numbers[block.is_entry] for block in blocks]),
        ids=Ragged(ids, offsets_of(counts)),
        logprobs=np.concatenate([block.numbers[chosen] for block, chosen in pairs]),
        ranks=np.concatenate(ranks) if ranks else None,
    )
