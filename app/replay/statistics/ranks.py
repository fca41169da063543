"""Whether the most likely token, the second and so on are drawn as often as expected.

Each rank's count is compared with the sum of its probabilities over the rows: a chi-square with
the exact covariance of draws from rows that differ. Its limit is not to be trusted far out in
the tail, so it decides nothing; what decides is again a test martingale, whose alternative for
each row is learned from the rows before: every rank's probability times how often it has come up
per expected time (Dawid's plug-in prequential likelihood ratio).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.replay.statistics.known_rows import KnownRows
from app.replay.statistics.likelihood import p_value_of_mixture
from app.replay.statistics.result import Tested
from app.replay.statistics.special import chi_square_survival

# First ranks of the cells: 0, 1, 2, 3, 4-7, 8-15, 16-63, 64 on; and "another".
_FIRST_RANKS = (0, 1, 2, 3, 4, 8, 16, 64)
_CELLS = len(_FIRST_RANKS) + 1
# Cochran's rule, that cells should expect five draws, said of their variance: the same for rare
# cells, and stricter for those that are all but certain.
_LEAST_VARIANCE = 5.0
# Draws that each cell is taken to have had as expected before the first row. A few let it learn
# gross errors at once, many keep small ones from being lost in noise.
_PRIOR_DRAWS = np.array([1.0, 8.0, 64.0])


@dataclass(slots=True, eq=False)
class _Counts:
    """Draws seen and expected by cell, and the covariance of what is seen."""

    seen: NDArray[np.float64] = field(default_factory=lambda: np.zeros(_CELLS))
    expected: NDArray[np.float64] = field(default_factory=lambda: np.zeros(_CELLS))
    shared: NDArray[np.float64] = field(default_factory=lambda: np.zeros((_CELLS, _CELLS)))


def rank_test(rows: KnownRows) -> Tested:
    """Test the counts of ranks; the statistic is the chi-square."""
    counts = _Counts()
    log_ratios = np.zeros(len(_PRIOR_DRAWS))
    for block in rows.blocks():
        expected, drawn = _cells(block)
        seen = np.zeros_like(expected)
        seen[np.arange(len(block)), drawn] = 1.0
        seen_before = counts.seen + np.cumsum(seen, axis=0) - seen
        expected_before = counts.expected + np.cumsum(expected, axis=0) - expected
        for place, prior in enumerate(_PRIOR_DRAWS):
            weights = (seen_before + prior) / (expected_before + prior)
            log_ratios[place] += np.log(
                np.take_along_axis(weights, drawn[:, None], axis=1)[:, 0]
                / (expected * weights).sum(axis=1)
            ).sum()
        counts.seen += seen.sum(axis=0)
        counts.expected += expected.sum(axis=0)
        counts.shared += expected.T @ expected
    statistic, nominal = _chi_square(counts)
    return Tested("ranks", len(rows), statistic, nominal, p_value_of_mixture(log_ratios))


def _cells(block: KnownRows) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Probability of each cell in each row, (n, cells), and the cell drawn, (n,)."""
    sizes = np.diff(block.offsets)
    ranks = np.arange(len(block.logprobs), dtype=np.int64) - np.repeat(block.offsets[:-1], sizes)
    cells = np.searchsorted(_FIRST_RANKS, ranks, side="right").astype(np.int64) - 1
    cells[(block.offsets[1:] - 1)[block.other_last]] = _CELLS - 1
    flat = np.repeat(np.arange(len(block)), sizes) * _CELLS + cells
    sums = np.bincount(flat, weights=np.exp(block.logprobs), minlength=len(block) * _CELLS)
    expected = sums.astype(np.float64)
    drawn: NDArray[np.int64] = cells[block.drawn_at]
    return expected.reshape(len(block), _CELLS), drawn


def _chi_square(counts: _Counts) -> tuple[float | None, float | None]:
    """The statistic and its nominal p-value, over cells pooled to enough expected draws."""
    exact = np.diag(counts.expected) - counts.shared
    groups = _pooled(exact)
    if len(groups) < 2:
        return None, None
    pooling = np.zeros((len(groups), _CELLS))
    for place, group in enumerate(groups):
        pooling[place, group] = 1.0
    deviation = pooling @ (counts.seen - counts.expected)
    covariance = pooling @ exact @ pooling.T
    # Counts add up to n, so one cell says nothing of its own; others may be certain as well.
    values, vectors = np.linalg.eigh(covariance)
    varies = values > 1e-9 * max(float(values.max()), 1.0)
    df = int(np.count_nonzero(varies))
    if not df:
        return None, None
    statistic = float((((vectors.T @ deviation)[varies]) ** 2 / values[varies]).sum())
    return statistic, chi_square_survival(statistic, df)


def _pooled(covariance: NDArray[np.float64]) -> list[list[int]]:
    """Group neighbouring cells until each group varies enough; the remainder joins the last."""
    groups: list[list[int]] = []
    group: list[int] = []
    for cell in range(_CELLS):
        group.append(cell)
        if covariance[np.ix_(group, group)].sum() >= _LEAST_VARIANCE:
            groups.append(group)
            group = []
    if group and groups:
        groups[-1] = groups[-1] + group
    return groups
