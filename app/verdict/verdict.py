"""The configuration gate's answer to one proposal for one vLLM version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from app.verdict.finding import Finding, Severity
from app.verdict.jsonable import jsonable
from app.verdict.location import Location

VERDICT_SCHEMA = "vllm-admission.verdict/1"


class Outcome(StrEnum):
    """Whether that vLLM version would start with the proposal."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDETERMINED = "undetermined"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Give the worst of several: rejected, then undetermined, then accepted."""
    found = set(outcomes)
    order = (Outcome.REJECTED, Outcome.UNDETERMINED)
    return next((outcome for outcome in order if outcome in found), Outcome.ACCEPTED)


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A rule that abstained, and the fact that would let it decide."""

    rule: str
    needs: str

    def as_json(self) -> dict[str, str]:
        """Render as plain data."""
        return {"rule": self.rule, "needs": self.needs}


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that an exception took out of the verdict, and the exception's reason and place."""

    finding: Finding
    reason: str
    exception: Location | None = None

    def as_json(self) -> dict[str, Any]:
        """Render as the finding with its reason."""
        return {**self.finding.as_json(), "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Findings, what they add up to, and the corrected proposal where there is one.

    `corrected` is the proposal in its own form with the fixes applied (`command`, `args`, `env`,
    `compose` and so on), present only if the gate itself accepts it. `settings` are the values
    given with their origin, and what vLLM makes of them. `subject` names which proposal of the
    document it is about, if there can be several (a compose service). `suppressed` are findings
    that exceptions with a reason took out. `sources` are the texts
    that locations with a line point into, by `Location.source`; they are for reports and not
    part of the answer.
    """

    vllm_version: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    corrected: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    id: Any = None
    subject: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, vllm_version: str, findings: Iterable[Finding], **rest: Any) -> Self:
        """Add findings up: an error rejects, else an undecided question leaves it open."""
        findings = tuple(findings)
        if any(f.severity is Severity.ERROR for f in findings):
            outcome = Outcome.REJECTED
        elif any(f.undecided for f in findings):
            outcome = Outcome.UNDETERMINED
        else:
            outcome = Outcome.ACCEPTED
        return cls(vllm_version=vllm_version, outcome=outcome, findings=findings, **rest)

    @property
    def accepted(self) -> bool:
        """Whether vLLM would start; false for undetermined."""
        return self.outcome is Outcome.ACCEPTED

    def as_json(self) -> dict[str, Any]:
        """Render as the object that `POST /validate` and `--format json` give; strict JSON."""
        body: dict[str, Any] = {
            "schema": VERDICT_SCHEMA,
            "id": self.id,
            "subject": self.subject,
            "verdict": self.outcome.value,
            "accepted": self.accepted,
            "vllm_version": self.vllm_version,
            "findings": [finding.as_json() for finding in self.findings],
            "not_checked": [entry.as_json() for entry in self.not_checked],
            "suppressed": [entry.as_json() for entry in self.suppressed],
            "corrected": dict(self.corrected) if self.corrected is not None else None,
            "settings": dict(self.settings) if self.settings is not None else None,
        }
        for name in ("id", "subject", "suppressed"):
            if not body[name] and body[name] != 0:
                del body[name]
        plain: dict[str, Any] = jsonable(body)
        return plain
