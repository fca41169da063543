"""Every row of a replayed choice: how its draw ended, by how much, and what it failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.replay.checks import Result, Subject
from app.replay.rows import Draws, Outcome, Reason

_REASONS = tuple(reason.value or None for reason in Reason)
_OUTCOMES = {outcome.value: outcome.name.lower() for outcome in Outcome}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowTable:
    """The n rows of one choice, a column each.

    Attributes:
        choice: the choice's index.
        first_position: of row 0, P - 1 for a prompt of P tokens; None if P is unknown.
        token_ids: sampled ids, (n,) int64.
        outcomes: `Outcome` values, (n,) int8.
        reasons: indices into `Reason`'s members, (n,) int8.
        gap: the sampled id's sum of logprob and noise less the best other's, (n,) float64;
            NaN where not drawn.
        tolerance: gap below which a draw decides nothing.
        kept_mass: probability of the mask's members by the logprobs given, (n,) float64; NaN
            where some member has none.
        mask_sizes: (n,) int64.
        failed: ids of the checks that failed, and the rows that failed them, (n,) bool each.
    """

    choice: int
    first_position: int | None
    token_ids: NDArray[np.int64]
    outcomes: NDArray[np.int8]
    reasons: NDArray[np.int8]
    gap: NDArray[np.float64]
    tolerance: float
    kept_mass: NDArray[np.float64]
    mask_sizes: NDArray[np.int64]
    failed: tuple[tuple[str, NDArray[np.bool_]], ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    def failures(self) -> list[list[str]]:
        """The checks that each row failed, in the order of the checks."""
        names: list[list[str]] = [[] for _ in range(len(self))]
        for check, rows in self.failed:
            for row in np.flatnonzero(rows):
                if check not in names[row]:
                    names[row].append(check)
        return names

    def columns(self) -> dict[str, list[Any]]:
        """The table as plain values, None where a number is not known."""
        rows = len(self)
        first = self.first_position
        return {
            "choice": [self.choice] * rows,
            "row": list(range(rows)),
            "position": [None] * rows if first is None else list(range(first, first + rows)),
            "token_id": self.token_ids.tolist(),
            "outcome": [_OUTCOMES[outcome] for outcome in self.outcomes.tolist()],
            "reason": [_REASONS[reason] for reason in self.reasons.tolist()],
            "gap": _known(self.gap),
            "tolerance": [self.tolerance] * rows,
            "kept_mass": _known(self.kept_mass),
            "mask_size": self.mask_sizes.tolist(),
            "failed": self.failures(),
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """The table row by row."""
        columns = self.columns()
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def row_table(subject: Subject, draws: Draws, results: Sequence[Result]) -> RowTable:
    """Collect what is known of each row of a choice; an observer of `report_on`."""
    support = subject.support
    prompt = subject.evidence.prompt_length
    undecidable = draws.outcomes == Outcome.UNDECIDABLE
    return RowTable(
        choice=subject.choice.index,
        first_position=None if prompt is None else prompt - 1,
        token_ids=subject.choice.token_ids,
        outcomes=draws.outcomes,
        reasons=np.where(undecidable, draws.reasons, 0).astype(np.int8),
        gap=draws.gap,
        tolerance=draws.tolerance,
        kept_mass=np.where(support.covered, support.mass, np.nan),
        mask_sizes=support.masks.counts,
        failed=tuple((result.check.id, result.failed) for result in results if result.failed.any()),
    )


def _known(values: NDArray[np.float64]) -> list[float | None]:
    finite = np.isfinite(values)
    if finite.all():
        known: list[float | None] = values.tolist()
        return known
    return [value if ok else None for value, ok in zip(values.tolist(), finite, strict=True)]
