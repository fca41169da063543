"""What one test says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tested:
    """One test of n rows.

    Attributes:
        name: of the test.
        rows: n.
        statistic: its classical statistic; None where the rows do not allow it.
        nominal_p_value: of that statistic under its limiting distribution, for reading; None
            without one.
        p_value: decides. Under the null hypothesis it is at most x with a probability of at
            most x, whatever n and the rows, also where rows depend on earlier draws.
    """

    name: str
    rows: int
    statistic: float | None
    nominal_p_value: float | None
    p_value: float

    def as_json(self) -> dict[str, Any]:
        """Render as in a report."""
        return {
            "rows": self.rows,
            "statistic": self.statistic,
            "nominal_p_value": self.nominal_p_value,
            "p_value": self.p_value,
        }

    def as_text(self) -> str:
        """Render in one line."""
        words = [self.name]
        if self.statistic is not None:
            words.append(f"statistic {self.statistic:.4g}")
        if self.nominal_p_value is not None and self.nominal_p_value != self.p_value:
            words.append(f"nominal p-value {self.nominal_p_value:.2g}")
        return ", ".join([*words, f"p-value {self.p_value:.2g}"])
