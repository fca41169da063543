"""Rows of known distribution, written as probabilities, and honest or other draws from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from app.replay.ragged import offsets_of
from app.replay.statistics.known_rows import KnownRows

Row = Sequence[float]


def known(rows: Sequence[Row], drawn: Sequence[int], *, other: bool = False) -> KnownRows:
    """Rows as `known_rows` gives them; `drawn` counts within each."""
    offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
    places = np.array(drawn, np.int64)
    return KnownRows(
        logprobs=np.log(np.concatenate([np.asarray(row, np.float64) for row in rows])),
        offsets=offsets,
        drawn_at=offsets[:-1] + places,
        other_last=np.full(len(rows), other),
        left_out={},
    )


def every_draw(rows: Sequence[Row]) -> Iterator[tuple[float, list[int]]]:
    """Every way to draw from rows, with its probability."""
    for drawn in product(*(range(len(row)) for row in rows)):
        yield float(np.prod([row[i] for row, i in zip(rows, drawn, strict=True)])), list(drawn)


def random_rows(rng: np.random.Generator, n: int, *, scale: float = 1.5) -> list[list[float]]:
    """Rows of 2 to 12 outcomes, the most likely first."""
    rows = []
    for _ in range(n):
        p = np.exp(scale * rng.normal(size=rng.integers(2, 13)))
        rows.append(sorted((p / p.sum()).tolist(), reverse=True))
    return rows


def drawn_from(rng: np.random.Generator, rows: Sequence[Row], power: float = 1.0) -> list[int]:
    """A draw from each row, raised to a power."""
    width = max(len(row) for row in rows)
    weights = np.array([[*row, *[0.0] * (width - len(row))] for row in rows]) ** power
    weights[np.array([[i >= len(row) for i in range(width)] for row in rows])] = 0.0
    total = np.cumsum(weights, axis=1)
    picked: NDArray[np.int64] = (total < rng.random((len(rows), 1)) * total[:, -1:]).sum(axis=1)
    return [int(i) for i in picked]


def key(rng: np.random.Generator) -> NDArray[np.uint64]:
    """A key of the randomisation."""
    return rng.integers(2**64, size=2, dtype=np.uint64)
