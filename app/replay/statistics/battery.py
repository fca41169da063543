"""The three tests of sampled ids against the returned rows, and what they come to together.

They share one false-alarm rate by Bonferroni's rule, which holds however they depend on
each other. `docs/statistics.md` says what each assumes and what it can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.replay.checks.result import Subject
from app.replay.evidence import Evidence
from app.replay.rows import Draws, Outcome, Reason
from app.replay.statistics import declarations
from app.replay.statistics.known_rows import join as join_rows
from app.replay.statistics.known_rows import known_rows
from app.replay.statistics.likelihood import likelihood_test
from app.replay.statistics.pit import evidence_key, pit_test
from app.replay.statistics.ranks import rank_test
from app.replay.statistics.result import Tested
from app.rules.declaration import Declaration
from app.verdict.finding import Finding
from app.verdict.location import Location

_CHECKS: dict[str, Declaration] = {
    "pit": declarations.PIT,
    "likelihood": declarations.LIKELIHOOD,
    "ranks": declarations.RANKS,
}
_SAYS = {
    "pit": "their places in the rows' distributions are not uniform",
    "likelihood": "they are too likely or too unlikely",
    "ranks": "their ranks come up too often or too seldom",
}
# Not refuted, but an honest report gets there less than once in a thousand.
_UNUSUAL = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the tests say of one report.

    Attributes:
        not_tested: why there are none, or empty.
        rate: of false alarms, for all tests together.
        rows: tested.
        partly: of these, rows that are known but for one outcome, "another".
        left_out: rows not tested, by reason.
        tests: their results.
        pointer: to what was tested.
        told_apart: multiples of the right temperature, below and above one, which such rows
            show 9 times of 10.
    """

    not_tested: str = ""
    rate: float
    rows: int = 0
    partly: int = 0
    left_out: dict[str, int]
    tests: tuple[Tested, ...] = ()
    pointer: str = ""
    told_apart: tuple[float | None, float | None] = (None, None)

    @property
    def p_value(self) -> float | None:
        """Of all tests together, by Bonferroni's rule; None without tests."""
        if not self.tests:
            return None
        return min(1.0, len(self.tests) * min(test.p_value for test in self.tests))

    def failed(self) -> tuple[Tested, ...]:
        """Tests that refute the draws."""
        return tuple(t for t in self.tests if t.p_value * len(self.tests) <= self.rate)

    def counts(self) -> dict[str, dict[str, int]]:
        """Tests passed, failed and not made, by check id, as reports count checks."""
        if not self.tests:
            return {}
        failed = {test.name for test in self.failed()}
        return {
            _CHECKS[test.name].id: {
                "passed": int(test.name not in failed),
                "failed": int(test.name in failed),
                "not_checked": 0,
            }
            for test in self.tests
        }

    def findings(self) -> list[Finding]:
        """What the tests refute."""
        return [
            Finding(
                rule=_CHECKS[test.name].id,
                severity=_CHECKS[test.name].severity,
                message=(
                    f"the sampled ids of {self.rows} rows do not look drawn from the returned "
                    f"distributions: {_SAYS[test.name]} (p-value {test.p_value:.2g}, refuted at "
                    f"{self.rate / len(self.tests):.2g})"
                ),
                location=Location(pointer=self.pointer),
                evidence={
                    "rows_tested": test.rows,
                    "statistic": test.statistic,
                    "p_value": test.p_value,
                    "false_alarm_rate": self.rate,
                },
            )
            for test in self.failed()
        ]

    @property
    def conclusion(self) -> str:
        """The strength of the evidence, in words."""
        if not self.tests:
            return self.not_tested
        p_value = self.p_value
        assert p_value is not None  # noqa: S101 - there are tests
        if self.failed():
            return "the sampled ids do not look drawn from the returned rows"
        opening = (
            f"unusual (p-value {p_value:.2g}), short of the false-alarm rate {self.rate:g}"
            if p_value <= _UNUSUAL
            else "nothing speaks against the returned rows"
        )
        colder, hotter = self.told_apart
        if colder is None and hotter is None:
            return (
                f"{opening}, but {self.rows} rows are too few to notice even a grossly wrong "
                "temperature"
            )
        factors = " or ".join(f"{factor:.3g}" for factor in (colder, hotter) if factor is not None)
        return f"{opening}; a temperature off by a factor of {factors} would show 9 times of 10"

    def as_json(self) -> dict[str, Any]:
        """Render as in a report."""
        body: dict[str, Any] = {
            "tested": bool(self.tests),
            "conclusion": self.conclusion,
            "false_alarm_rate": self.rate,
            "rows": self.rows,
            "rows_partly_known": self.partly,
            "rows_left_out": dict(self.left_out),
            "p_value": self.p_value,
            "tests": {test.name: test.as_json() for test in self.tests},
        }
        if self.tests:
            colder, hotter = self.told_apart
            body["temperature_told_apart"] = {"below": colder, "above": hotter}
        return body


def examine(evidence: Evidence, subjects: Sequence[Subject], draws: Sequence[Draws]) -> Statistics:
    """Test the rows of all choices together.

    Unless asked, only where the seeded draw leaves something open: draws that repeat are proven,
    and what is proven needs no evidence.
    """
    wanted, rate = evidence.analysis.statistics, evidence.analysis.false_alarm_rate
    if wanted is False:
        return Statistics(not_tested="statistics were not asked for", rate=rate, left_out={})
    if wanted is None and not _open_rows(draws):
        return Statistics(not_tested="the seeded draw decides the rows", rate=rate, left_out={})
    if (why := _not_drawn_from_rows(evidence)) is not None:
        return Statistics(not_tested=why, rate=rate, left_out={})
    rows = join_rows(known_rows(evidence, s.choice, s.support) for s in subjects)
    if not len(rows):
        return Statistics(
            not_tested="no row has more than one token and a known distribution",
            rate=rate,
            left_out=dict(rows.left_out),
        )
    likelihood = likelihood_test(rows)
    tests = (pit_test(rows, evidence_key(evidence.choices)), likelihood.test, rank_test(rows))
    return Statistics(
        rate=rate,
        rows=len(rows),
        partly=int(rows.other_last.sum()),
        left_out=dict(rows.left_out),
        tests=tests,
        pointer=_pointer(subjects),
        told_apart=likelihood.told_apart(rate / len(tests)),
    )


def _pointer(subjects: Sequence[Subject]) -> str:
    """Point to the choice, or to the list of them."""
    first = subjects[0].choice.pointer
    return first if len(subjects) == 1 else first.rpartition("/")[0]


def _open_rows(draws: Sequence[Draws]) -> bool:
    """Whether a draw leaves a row open for another reason than a near tie."""
    return any(
        draw.count(Outcome.MISMATCH)
        or set(draw.reason_counts()) - {Reason.GAP_BELOW_TOLERANCE.value}
        for draw in draws
    )


def _not_drawn_from_rows(evidence: Evidence) -> str | None:
    """Why tokens are not drawn from their rows, or None if they are.

    Watermarks, probabilistic drafts and block verification keep each row's distribution.
    """
    sampling, options = evidence.sampling, evidence.options
    lossy = evidence.speculated and options.rejection_sample_method in ("synthetic", "fly")
    for applies, why in (
        (sampling.greedy, "the request is greedy: nothing is drawn"),
        (sampling.forced_tokens, "trace_decode_token_ids forces the tokens"),
        (sampling.infinite_bias, "an infinite logit bias forces tokens"),
        (lossy, f"{options.rejection_sample_method} acceptance does not draw from the rows"),
    ):
        if applies:
            return why
    return None
