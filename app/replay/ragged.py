"""Rows of unequal length, held flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

# Room for any 32-bit id beside a row number in one signed 64-bit key.
_ROW_STRIDE = np.int64(1) << np.int64(32)
_COLUMN_BITS = np.int64(31)
_COLUMNS = (np.int64(1) << _COLUMN_BITS) - np.int64(1)
# A table may have so many places for each value.
_MOST_PADDING = 4


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Integer rows: row i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: (m,) int64.
        offsets: (n + 1,) int64, ascending from 0 to m.
    """

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Flatten nested lists.

        Raises:
            OverflowError: a value does not fit in 64 bits.
        """
        offsets = offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))
        values = np.fromiter(chain.from_iterable(rows), np.int64, int(offsets[-1]))
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Length of each row, (n,)."""
        return np.diff(self.offsets)

    @property
    def row_of(self) -> NDArray[np.int64]:
        """The row each value belongs to, (m,)."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    def row(self, index: int) -> NDArray[np.int64]:
        """One row, as a view."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def sorting_order(self) -> NDArray[np.int64]:
        """Give the order that sorts values within their rows, equal ones as they came, (m,).

        Values must fit in 32 bits without sign.
        """
        counts = self.counts
        width = int(counts.max(initial=0))
        if width * len(self) > _MOST_PADDING * len(self.values) or width > _COLUMNS:
            return np.argsort(self.keys, kind="stable")
        # Many short rows are sorted faster as a table, value and column packed into one number.
        used = np.arange(width) < counts[:, None]
        table = np.full(used.shape, np.iinfo(np.int64).max)
        table[used] = self.values
        table <<= _COLUMN_BITS
        table |= np.arange(width)
        table[~used] = np.iinfo(np.int64).max
        table.sort(axis=1)
        table &= _COLUMNS
        table += self.offsets[:-1, None]
        return table[used]

    @property
    def keys(self) -> NDArray[np.int64]:
        """(row, value) packed into one sortable number; values must fit in 32 bits."""
        return self.row_of * _ROW_STRIDE + self.values


def offsets_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the offsets, (n + 1,), of rows with these lengths, (n,)."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def row_keys(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the keys of one value a row, comparable with `Ragged.keys`."""
    return np.arange(len(values), dtype=np.int64) * _ROW_STRIDE + values


def reduce_rows(
    operation: np.ufunc, values: NDArray[np.float64], offsets: NDArray[np.int64], empty: float
) -> NDArray[np.float64]:
    """Reduce each row of flat `values` with `operation`; empty rows give `empty`, (n,)."""
    counts = np.diff(offsets)
    result = np.full(len(counts), empty)
    filled = counts > 0
    # reduceat runs to the next index given, so leaving out empty rows keeps the others whole.
    if filled.any():
        result[filled] = operation.reduceat(values, offsets[:-1][filled])
    return result
