"""What one check found over the rows of one choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.replay.evidence import Choice, Evidence
from app.replay.support import Support
from app.rules.declaration import Declaration
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

# Rows whose evidence a finding carries; the rest are counted.
SHOWN_ROWS = 5


@dataclass(frozen=True, eq=False)
class Subject:
    """What a check looks at: one choice of a response.

    Attributes:
        evidence: the exchange.
        choice: one of its choices, of n rows.
        support: its masks joined with its logprobs.
    """

    evidence: Evidence
    choice: Choice
    support: Support

    @cached_property
    def rows(self) -> int:
        """Number of rows, n."""
        return len(self.choice)

    def none(self) -> NDArray[np.bool_]:
        """No row, (n,)."""
        return np.zeros(self.rows, np.bool_)


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """The rows that fail a check.

    Attributes:
        check: its declaration.
        failed: (n,).
        undecided: rows that it could not decide, (n,); None for none.
        message: what is wrong with the failed rows, in one sentence.
        member: where in the choice they are: `token_ids`, `sampling_mask` or
            `logprobs/content`.
        show: the evidence of one row: ids and numbers.
        severity: of the finding, where it is not the declared one.
        evidence: what concerns all failed rows.
    """

    check: Declaration
    failed: NDArray[np.bool_]
    message: str
    member: str = "token_ids"
    undecided: NDArray[np.bool_] | None = None
    show: Callable[[int], dict[str, Any]] = field(default=lambda _row: {})
    severity: Severity | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Rows passed, failed and not checked."""
        failed = int(np.count_nonzero(self.failed))
        undecided = 0 if self.undecided is None else int(np.count_nonzero(self.undecided))
        return {
            "passed": len(self.failed) - failed - undecided,
            "failed": failed,
            "not_checked": undecided,
        }

    def only(self, rows: NDArray[np.bool_] | None) -> Result:
        """Give the result for the rows that are asked about, (n,), the others not checked."""
        if rows is None:
            return self
        undecided = ~rows if self.undecided is None else self.undecided | ~rows
        return replace(self, failed=self.failed & rows, undecided=undecided)

    def finding(self, choice: Choice) -> Finding | None:
        """Say which rows failed and show the first of them; None if all passed."""
        rows = np.flatnonzero(self.failed)
        if not len(rows):
            return None
        first = int(rows[0])
        share = f"{len(rows)} of {len(self.failed)} rows" if len(self.failed) > 1 else "the row"
        return Finding(
            rule=self.check.id,
            severity=self.severity or self.check.severity,
            message=f"choice {choice.index}, {share}, first row {first}: {self.message}",
            location=Location(
                pointer=choice.pointer if choice.bare else f"{choice.pointer}/{self.member}/{first}"
            ),
            evidence={
                "choice": choice.index,
                "rows_failed": len(rows),
                **self.evidence,
                "rows": [
                    {"row": int(row), "token_id": int(choice.token_ids[row]), **self.show(int(row))}
                    for row in rows[:SHOWN_ROWS]
                ],
            },
        )
