"""The corrected proposal: fixes of findings applied until the gate accepts, and no more of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from app.catalogue import Catalogue
from app.proposal.edit import apply_edits
from app.proposal.proposal import Form, Proposal
from app.proposal.render import render
from app.rules.declaration import Declaration
from app.rules.registry import finding_of
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, ReplaceArgument, SetFlag
from app.verdict.verdict import Verdict

NO_PLACE = Declaration(
    id="kubernetes-fix-elsewhere",
    title="What would mend it is not written in this object",
    explanation="A custom resource says only a part of a server's command. The rest stands in "
    "another object, such as the runtime that it names, or a controller works it out.",
    remedy="Make the change there.",
    severity=Severity.INFO,
    area="kubernetes",
    source="app/kubernetes/made_writer.py",
)
DECLARATIONS: Final = (NO_PLACE,)
# Fixes that are tried one by one to see whether they have a place: each takes a reading.
_TRIED: Final = 4
# Each round mends everything known; what a round uncovers (a value behind a syntax error, a
# flag that only mattered with another) takes one more.
_ROUNDS: Final = 6
# Without a fix of its own this stays, whatever else is mended: no edit touches that word.
_STAYS: Final = frozenset({"cli-unknown-flag"})
# What these find is in the value itself, so that no fix of another setting mends it.
_OF_THE_VALUE: Final = frozenset(
    {
        *("cli-unknown-flag", "cli-invalid-choice", "cli-invalid-value", "env-invalid-value"),
        *("value-out-of-range", "invalid-field-value", "unknown-key", "max-logprobs-range"),
    }
)


class Judge(Protocol):
    """Judges a mended proposal; `suspect` is the rule that most likely still refuses it."""

    def __call__(self, proposal: Proposal, /, suspect: str | None = None) -> Verdict:
        """Give the verdict; its findings may be incomplete where it rejects by the suspect."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """A fix and the rule that asked for it."""

    fix: Fix
    rule: str


def corrected(
    proposal: Proposal, findings: Iterable[Finding], catalogue: Catalogue, judge: Judge
) -> dict[str, Any] | None:
    """Apply fixes until accepted: the safe ones first, others only when those run out.

    Gives the proposal in its own form with the `fixes` applied and whether all are `safe`; None
    where fixes do not suffice.
    """
    applied: list[_Applied] = []
    mended = proposal
    for _ in range(_ROUNDS):
        fixes = _next_fixes(findings, [entry.fix for entry in applied])
        if not fixes:
            return None
        applied.extend(fixes)
        mended = _with_fixes(mended, fixes, catalogue)
        verdict = judge(mended)
        if verdict.accepted:
            mended, needed = _fewest(proposal, mended, applied, catalogue, judge)
            return {
                **render(mended),
                "fixes": [entry.fix.description for entry in needed],
                "safe": all(entry.fix.safe for entry in needed),
            }
        findings = verdict.findings
    return None


def unplaced(
    proposal: Proposal, findings: Iterable[Finding], catalogue: Catalogue
) -> Iterator[Finding]:
    """Say of safe fixes that cannot be written where the proposal is.

    A custom resource does not say all of a server's command: a runtime in another object may, or
    a controller works it out.
    """
    if proposal.form is not Form.KUBERNETES:
        return
    safe = (f for f in filter(decisive, findings) if f.fix is not None and f.fix.safe)
    for found in islice(safe, _TRIED):
        fix = found.fix
        if fix is not None and apply_edits(proposal, fix.edits, catalogue) is proposal:
            yield finding_of(
                NO_PLACE,
                f"{fix.description}: there is no place for it in this object, which does not say "
                "that part of the command",
                location=found.location,
            )


def decisive(found: Finding) -> bool:
    """Whether a finding keeps a proposal from being accepted."""
    return found.undecided or found.severity is Severity.ERROR


def _fewest(
    proposal: Proposal,
    mended: Proposal,
    applied: Sequence[_Applied],
    catalogue: Catalogue,
    judge: Judge,
) -> tuple[Proposal, Sequence[_Applied]]:
    """Leave out what other fixes make superfluous; what gives something up, and is last, first."""
    if len(applied) == 1:
        return mended, applied
    if any(isinstance(edit, ReplaceArgument) for entry in applied for edit in entry.fix.edits):
        return mended, applied  # its index holds only after the fixes before it
    needed = list(applied)
    last_first = applied[::-1]
    for entry in sorted(last_first, key=lambda entry: entry.fix.safe):
        if entry.rule in _OF_THE_VALUE and _alone(entry, applied):
            continue
        fewer = [other for other in needed if other is not entry]
        candidate = _with_fixes(proposal, fewer, catalogue)
        if judge(candidate, entry.rule).accepted:
            mended, needed = candidate, fewer
    return mended, needed


def _alone(entry: _Applied, applied: Iterable[_Applied]) -> bool:
    """Whether no other fix edits a setting or variable that this one does."""
    others = {target for other in applied if other is not entry for target in _targets(other.fix)}
    return others.isdisjoint(_targets(entry.fix))


def _targets(fix: Fix) -> set[str]:
    return {
        edit.dest.partition(".")[0] if isinstance(edit, SetFlag | RemoveFlag) else edit.variable
        for edit in fix.edits
        if not isinstance(edit, ReplaceArgument)
    }


def _with_fixes(proposal: Proposal, applied: Iterable[_Applied], catalogue: Catalogue) -> Proposal:
    edits = [edit for entry in applied for edit in entry.fix.edits]
    return apply_edits(proposal, edits, catalogue)


def _next_fixes(findings: Iterable[Finding], before: Sequence[Fix]) -> tuple[_Applied, ...]:
    """Give the fixes not yet applied; none where something is left that no fix can mend."""
    fresh: list[_Applied] = []
    for found in filter(decisive, findings):
        fix = found.fix
        if fix is None:
            if found.rule in _STAYS:
                return ()
        elif fix not in before and all(fix != entry.fix for entry in fresh):
            fresh.append(_Applied(fix, found.rule))
    return tuple(entry for entry in fresh if entry.fix.safe) or tuple(fresh)
