"""What replaying one exchange shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from app.replay import declarations
from app.replay.checks import Result, Subject, check_distribution, check_exchange, check_ids
from app.replay.contest import Stream, contest, winner
from app.replay.diagnosis import explain
from app.replay.evidence import Evidence
from app.replay.resample import report_text as resample_text
from app.replay.resample import resample_choices
from app.replay.rows import Draws, Outcome, Reason, draw_rows, stream_of
from app.replay.statistics.battery import Statistics, examine
from app.replay.support import support_of
from app.replay.trainer import Comparison, compare
from app.replay.wire.case import read_case
from app.verdict.finding import Finding, Severity

REPORT_SCHEMA = "vllm-admission.replay/1"

Observer: TypeAlias = Callable[[Subject, Draws, Sequence[Result]], None]


class ReplayVerdict(StrEnum):
    """Whether the response is what the engine drew.

    Inconsistent: something refutes it. Consistent: every row's draw repeats, save rows whose
    two best sums are too close to tell. Unproven: nothing refutes it, and evidence is missing.
    """

    CONSISTENT = "consistent"
    INCONSISTENT = "inconsistent"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer of the replay gate to one case.

    Attributes:
        id: the caller's.
        verdict: what it comes to.
        vllm_version: that was assumed.
        rows: `total`, `exact`, `mismatch`, `undecidable` and `undecidable_reasons`.
        choices: a summary of each.
        checks: rows (or exchanges) passed, failed and not checked, by check id.
        findings: what failed, with the first rows as evidence.
        statistics: whether tokens look drawn from their rows, where that is not proven.
        resample: fresh draws, where they were asked for.
        trainer: a trainer's logprobs compared with the sampler's, where they were given.
    """

    id: Any
    verdict: ReplayVerdict
    vllm_version: str
    rows: Mapping[str, Any]
    choices: tuple[Mapping[str, Any], ...]
    checks: Mapping[str, Mapping[str, int]]
    findings: tuple[Finding, ...]
    statistics: Statistics
    resample: Mapping[str, Any] | None = None
    trainer: Comparison | None = None

    @property
    def consistent(self) -> bool:
        """Whether the verdict is consistent."""
        return self.verdict is ReplayVerdict.CONSISTENT

    def as_json(self) -> dict[str, Any]:
        """Render as the object that `POST /replay` and `--format json` give."""
        body: dict[str, Any] = {
            "schema": REPORT_SCHEMA,
            "id": self.id,
            "verdict": self.verdict.value,
            "vllm_version": self.vllm_version,
            "rows": dict(self.rows),
            "choices": [dict(choice) for choice in self.choices],
            "checks": {name: dict(counts) for name, counts in self.checks.items()},
            "findings": [finding.as_json() for finding in self.findings],
            "statistics": self.statistics.as_json(),
        }
        if self.resample is not None:
            body["resample"] = dict(self.resample)
        if self.trainer is not None:
            body["trainer"] = self.trainer.body
        if self.id is None:
            del body["id"]
        return body


def replay(case: Mapping[str, Any] | bytes | str) -> Report:
    """Replay `{vllm_version, request, response, options?, id?}`.

    Raises:
        UnusableInput: the case cannot be read; the problems say what and where.
        UnknownVersion: that version returns no sampling masks.
    """
    return report_on(read_case(case))


def report_on(evidence: Evidence, observe: Observer | None = None) -> Report:
    """Run every check and every draw on evidence that has been read.

    `observe` is given each choice with its rows' draws and checks.
    """
    findings: list[Finding] = []
    checks: dict[str, Counter[str]] = {}
    for check, finding in check_exchange(evidence):
        outcome = "passed" if finding is None else "failed"
        checks.setdefault(check.id, Counter(passed=0, failed=0, not_checked=0))[outcome] += 1
        findings += [finding] if finding is not None else []
    summaries: list[Mapping[str, Any]] = []
    totals: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    subjects: list[Subject] = []
    drawn: list[Draws] = []
    for choice in evidence.choices:
        ranked = not evidence.sampling.logprob_token_ids
        subject = Subject(evidence, choice, support_of(choice, ranked=ranked))
        draws = draw_rows(evidence, choice, subject.support)
        found = (*check_ids(subject), *check_distribution(subject), _draw_check(subject, draws))
        results = [result.only(choice.replayed) for result in found]
        if observe is not None:
            observe(subject, draws, results)
        _add_up(checks, results)
        findings += [f for result in results if (f := result.finding(choice)) is not None]
        summaries.append(_summary(subject, draws))
        for outcome_ in Outcome:
            totals[outcome_.name.lower()] += draws.count(outcome_)
        reasons.update(draws.reason_counts())
        subjects.append(subject)
        drawn.append(draws)
    statistics = examine(evidence, subjects, drawn)
    checks.update({name: Counter(counts) for name, counts in statistics.counts().items()})
    findings += statistics.findings()
    analysis = evidence.analysis
    trainer = compare(subjects, analysis) if analysis.trainer else None
    findings += trainer.findings() if trainer is not None else []
    rows = {
        "total": totals.total(),
        **{outcome_.name.lower(): totals[outcome_.name.lower()] for outcome_ in Outcome},
        "undecidable_reasons": dict(reasons),
    }
    return Report(
        id=evidence.id,
        verdict=_verdict(findings, totals, reasons),
        vllm_version=str(evidence.version),
        rows=rows,
        choices=tuple(summaries),
        checks=checks,
        findings=tuple(sorted(findings, key=lambda f: list(Severity).index(f.severity))),
        statistics=statistics,
        resample=resample_choices(subjects, analysis.resample) if analysis.resample else None,
        trainer=trainer,
    )


def render_text(report: Report) -> str:
    """Render for people."""
    rows = report.rows
    counts = ", ".join(
        f"{rows[name]} {word}"
        for name, word in (
            ("total", "rows"),
            ("exact", "exact"),
            ("mismatch", "mismatched"),
            ("undecidable", "undecidable"),
            ("not_replayed", "not replayed"),
        )
        if rows[name] or name != "not_replayed"
    )
    lines = [f"{report.verdict.value} with vLLM {report.vllm_version}: {counts}"]
    lines += [f"  undecidable: {count} {why}" for why, count in rows["undecidable_reasons"].items()]
    for finding in report.findings:
        where = f" at {finding.location}" if finding.location is not None else ""
        lines.append(f"{finding.severity.value}[{finding.rule}]{where}")
        lines.append(f"  {finding.message}")
        for row in finding.evidence.get("rows", ()):
            lines.append("    " + ", ".join(f"{name} {value}" for name, value in row.items()))
    lines += _analyses(report)
    passed = sum(1 for check in report.checks.values() if not check["failed"])
    lines.append(f"{passed} of {len(report.checks)} checks passed")
    return "\n".join(lines) + "\n"


def _analyses(report: Report) -> list[str]:
    """Render statistics, fresh draws and the trainer's side."""
    statistics = report.statistics
    lines = []
    if statistics.tests:
        lines.append(f"statistics: {statistics.conclusion}")
        left = ", ".join(f"{count} {why}" for why, count in statistics.left_out.items())
        lines.append(f"  {statistics.rows} rows tested" + (f"; left out: {left}" if left else ""))
        lines += [f"  {test.as_text()}" for test in statistics.tests]
    if report.resample is not None:
        lines += [f"resampled: {line}" for line in resample_text(report.resample)]
    if report.trainer is not None:
        lines.append(f"trainer: {report.trainer.as_text()}")
    return lines


def _verdict(
    findings: Iterable[Finding], totals: Counter[str], reasons: Counter[str]
) -> ReplayVerdict:
    if totals["mismatch"] or any(f.severity is Severity.ERROR for f in findings):
        return ReplayVerdict.INCONSISTENT
    if not totals["exact"] or set(reasons) - {Reason.GAP_BELOW_TOLERANCE.value}:
        return ReplayVerdict.UNPROVEN
    return ReplayVerdict.CONSISTENT


def _add_up(checks: dict[str, Counter[str]], results: Iterable[Result]) -> None:
    """Add one choice's row counts; a check's first result has them, others only remark."""
    counted: set[str] = set()
    for result in results:
        name = result.check.id
        if name not in counted:
            counted.add(name)
            counts = checks.setdefault(name, Counter(passed=0, failed=0, not_checked=0))
            counts.update(result.counts())


def _draw_check(subject: Subject, draws: Draws) -> Result:
    evidence, choice, support = subject.evidence, subject.choice, subject.support
    failed = draws.outcomes == Outcome.MISMATCH
    message = "the repeated draw gives another token"
    shown: dict[str, Any] = {"tolerance": draws.tolerance}
    stream = stream_of(evidence, choice)
    sums = contest(support, stream).sums if failed.any() and isinstance(stream, Stream) else None
    if sums is not None and (why := explain(evidence, choice, support)) is not None:
        message += f"; {why}"
        shown["diagnosis"] = why

    def show(row: int) -> dict[str, Any]:
        if sums is None or not isinstance(stream, Stream):
            return {}
        return {
            "position": stream.first_position + row,
            "drawn_id": winner(support, sums, row),
            "gap": float(draws.gap[row]) if np.isfinite(draws.gap[row]) else None,
        }

    return Result(
        check=declarations.DRAW,
        failed=failed,
        undecided=draws.outcomes == Outcome.UNDECIDABLE,
        message=message,
        show=show,
        evidence=shown,
    )


def _summary(subject: Subject, draws: Draws) -> dict[str, Any]:
    choice, support = subject.choice, subject.support
    counts = support.masks.counts
    gaps = np.abs(draws.gap[np.isfinite(draws.gap)])
    return {
        "index": choice.index,
        "rows": len(choice),
        **{outcome.name.lower(): draws.count(outcome) for outcome in Outcome},
        "finish_reason": choice.finish_reason,
        "mean_mask_size": float(counts.mean()) if len(counts) else None,
        "singleton_rows": int(np.count_nonzero(counts == 1)),
        "covered_rows": int(np.count_nonzero(support.covered)),
        "smallest_gap": float(gaps.min()) if len(gaps) else None,
        "tolerance": draws.tolerance,
        **(
            {"accepted_drafts": draws.accepted, "residual_draws": draws.residual}
            if subject.evidence.speculated
            else {}
        ),
    }
