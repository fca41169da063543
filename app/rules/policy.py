"""What a site asks for beyond what vLLM would do: a profile, limits, and exceptions.

Findings are vLLM's; this decides what counts. Nothing is dropped: what an exception takes out of
the verdict stays in it as *suppressed*, with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from app.proposal.suppression import Profile, Suppression
from app.rules.declaration import Declaration, Example
from app.rules.registry import finding_of
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag
from app.verdict.location import Location
from app.verdict.verdict import NotChecked, Outcome, Suppressed, Verdict

_SOURCE: Final = "app/rules/policy.py"


LIMIT = Declaration(
    id="site-limit",
    title="A setting is above what this site allows",
    explanation="The operator of this gate set a limit (`VLLM_ADMISSION_LIMITS`). vLLM itself "
    "would start.",
    remedy="Lower the setting, or ask the operator.",
    severity=Severity.ERROR,
    area="site",
    source=_SOURCE,
)
NO_REASON = Declaration(
    id="suppression-without-reason",
    title="An exception gives no reason",
    explanation="Whoever reads the configuration next must be able to tell why a rule does not "
    "count here. Without a reason the exception is void.",
    remedy="Write the reason behind it: `# vllm-admission: ignore[rule-id] reason`.",
    severity=Severity.WARNING,
    area="site",
    source=_SOURCE,
    bad=(Example("vllm serve m --max-logprobs 64 # vllm-admission: ignore[env-unknown]"),),
    good=(Example("vllm serve m --max-logprobs 64"),),
)
UNKNOWN_RULE = Declaration(
    id="suppression-unknown-rule",
    title="An exception names a rule that there is not",
    explanation="It has no effect; most likely the rule's id is misspelt.",
    remedy="Take the id as findings show it; `GET /rules` lists all.",
    severity=Severity.WARNING,
    area="site",
    source=_SOURCE,
    bad=(Example("vllm serve m # vllm-admission: ignore[env-unknwon] our fork reads it"),),
    good=(Example("vllm serve m"),),
)
UNUSED = Declaration(
    id="suppression-unused",
    title="An exception from a rule that finds nothing",
    explanation="What it was for is gone, and it would hide the next fault of that kind.",
    remedy="Take the exception out.",
    severity=Severity.WARNING,
    area="site",
    source=_SOURCE,
    bad=(Example("vllm serve m # vllm-admission: ignore[env-unknown] our fork reads it"),),
    good=(
        Example("VLLM_OURS=1 vllm serve m # vllm-admission: ignore[env-unknown] our fork reads it"),
    ),
)
DECLARATIONS: Final = (LIMIT, NO_REASON, UNKNOWN_RULE, UNUSED)


@dataclass(frozen=True, slots=True)
class Policy:
    """The site's wishes. `limits` give the most that a setting may be, by its destination."""

    profile: Profile = Profile.DEFAULT
    limits: Mapping[str, float] = field(default_factory=dict)

    def over_limits(self, config: ServeConfig) -> tuple[list[Finding], list[NotChecked]]:
        """Compare effective settings with the limits."""
        findings: list[Finding] = []
        abstained: list[NotChecked] = []
        for dest, most in self.limits.items():
            try:
                value = config[dest]
            except Abstain as missing:
                abstained.append(NotChecked(LIMIT.id, missing.needs))
                continue
            over = isinstance(value, int | float) and not isinstance(value, bool) and value > most
            # For some settings -1 takes the bound away.
            if over or (value == -1 and dest in _UNBOUNDED):
                findings.append(_over(config, dest, value, most))
        return findings, abstained

    def outcome(self, outcome: Outcome, findings: Iterable[Finding]) -> Outcome:
        """Give the outcome under the profile: to the strict one a warning is one too many."""
        strict = self.profile is Profile.STRICT
        if strict and any(f.severity is Severity.WARNING for f in findings):
            return Outcome.REJECTED
        return outcome


_UNBOUNDED: Final = frozenset({"max_logprobs"})


def _over(config: ServeConfig, dest: str, value: float, most: float) -> Finding:
    lowered = int(most) if float(most).is_integer() else most
    shown = "without a bound" if value == -1 else f"{value:g}"
    return finding_of(
        LIMIT,
        f"{dest} is {shown}; this site allows {most:g}",
        location=config.place(dest),
        evidence={"setting": dest, "value": value, "limit": most},
        fix=Fix(f"set {dest} to {lowered:g}", (SetFlag(dest, lowered),), safe=False),
    )


def suppressed(
    findings: Sequence[Finding], suppressions: Sequence[Suppression], known: Iterable[str]
) -> tuple[list[Finding], list[Suppressed]]:
    """Take out what is excepted; report exceptions that are void, misspelt or unused."""
    if not suppressions:
        return list(findings), []
    valid = {s.rule: s for s in suppressions if s.reason}
    kept: list[Finding] = []
    taken: list[Suppressed] = []
    for finding in findings:
        found = valid.get(finding.rule)
        if found is None:
            kept.append(finding)
        else:
            taken.append(Suppressed(finding, found.reason, found.location))
    used = {entry.finding.rule for entry in taken}
    kept.extend(_remarks(suppressions, used, set(known)))
    return kept, taken


def _remarks(
    suppressions: Iterable[Suppression], used: set[str], known: set[str]
) -> Iterator[Finding]:
    for suppression in suppressions:
        rule, place = suppression.rule, suppression.location
        if rule not in known:
            close = difflib.get_close_matches(rule, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            yield finding_of(UNKNOWN_RULE, f"there is no rule {rule!r}{hint}", location=place)
        elif not suppression.reason:
            yield finding_of(
                NO_REASON, f"the exception from {rule} gives no reason and is void", location=place
            )
        elif rule not in used:
            yield finding_of(
                UNUSED, f"{rule} finds nothing here", location=place, evidence={"rule": rule}
            )


def without_shared_exceptions(verdicts: Sequence[Verdict], policy: Policy) -> list[Verdict]:
    """Take back that an exception is unused where another server of the same text uses it.

    An annotation, or a comment, counts for every server that the object or the text has.
    """
    used = {
        (verdict.vllm_version, entry.finding.rule, entry.exception)
        for verdict in verdicts
        for entry in verdict.suppressed
    }
    return [_without(verdict, used, policy) for verdict in verdicts]


def _without(
    verdict: Verdict, used: Set[tuple[str, str, Location | None]], policy: Policy
) -> Verdict:
    kept = tuple(
        found
        for found in verdict.findings
        if found.rule != UNUSED.id
        or (verdict.vllm_version, found.evidence.get("rule"), found.location) not in used
    )
    if len(kept) == len(verdict.findings):
        return verdict
    outcome = verdict.outcome
    if outcome is Outcome.REJECTED:  # to the strict profile the warning may have been the only one
        outcome = policy.outcome(Verdict.of(verdict.vllm_version, kept).outcome, kept)
    corrected = None if outcome is Outcome.ACCEPTED else verdict.corrected
    return replace(verdict, findings=kept, outcome=outcome, corrected=corrected)
