"""The verdict on a proposal for one vLLM version, and the corrected proposal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from app.catalogue import Catalogue
from app.proposal.edit import apply_edits
from app.proposal.proposal import Proposal
from app.proposal.render import render
from app.proposal.suppression import suppressions_in
from app.rules.derived.devices import device_named
from app.rules.effective import settings_of
from app.rules.policy import Policy, suppressed
from app.rules.registry import CrashHook, Registry, default_registry, run
from app.serve_config.resolve import resolve
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, ReplaceArgument
from app.verdict.verdict import NotChecked, Outcome, Verdict

Judge: TypeAlias = Callable[[Proposal, Catalogue], Verdict]

# Each round mends everything known; what a round uncovers (a value behind a syntax error, a
# flag that only mattered with another) takes one more.
_ROUNDS: Final = 6


def validate(
    proposal: Proposal,
    catalogue: Catalogue,
    *,
    registry: Registry | None = None,
    on_crash: CrashHook | None = None,
    every_setting: bool = False,
    policy: Policy | None = None,
) -> Verdict:
    """Judge a proposal; where it is not accepted, mend it if its fixes suffice.

    With `every_setting`, the verdict carries the settings that nobody gave too. `policy` is what
    the site asks for beside what vLLM would do.
    """
    judge = partial(judge_only, registry=registry or default_registry(), policy=policy)
    verdict = judge(proposal, catalogue, on_crash=on_crash, every_setting=every_setting)
    if verdict.accepted:
        return verdict
    return replace(verdict, corrected=_corrected(proposal, verdict, catalogue, judge))


def judge_only(
    proposal: Proposal,
    catalogue: Catalogue,
    *,
    registry: Registry | None = None,
    on_crash: CrashHook | None = None,
    every_setting: bool = False,
    policy: Policy | None = None,
) -> Verdict:
    """Judge a proposal without looking for a correction."""
    registry = registry or default_registry()
    policy = policy or Policy()
    catalogue = catalogue.on_platform(_platform(proposal))
    resolution = resolve(proposal, catalogue)
    config, sources = resolution.config, _sources(proposal)
    findings = list(resolution.findings)
    not_checked: list[NotChecked] = []
    if config is not None:
        for found, abstained in (
            run(registry.rules, config, on_crash),
            policy.over_limits(config),
        ):
            findings.extend(found)
            not_checked.extend(abstained)
    suppressions = (*proposal.suppressions, *suppressions_in(sources))
    findings, taken = suppressed(findings, suppressions, registry.by_id)
    verdict = Verdict.of(
        catalogue.vllm_version,
        findings,
        not_checked=tuple(dict.fromkeys(not_checked)),
        suppressed=tuple(taken),
        settings=None if config is None else settings_of(config, findings, every=every_setting),
        sources=sources,
    )
    outcome = policy.outcome(verdict.outcome, findings)
    if config is None and outcome is Outcome.ACCEPTED:
        # An exception took out what kept it from being read; of the rest nothing is known.
        outcome = Outcome.UNDETERMINED
    return replace(verdict, outcome=outcome)


def _platform(proposal: Proposal) -> str:
    """Name the platform as catalogues do; what is not known of one is as on CUDA."""
    gpu = proposal.hardware.gpu if proposal.hardware is not None else None
    return "cuda" if gpu is None else device_named(gpu).kind.value


def _corrected(
    proposal: Proposal, verdict: Verdict, catalogue: Catalogue, judge: Judge
) -> dict[str, Any] | None:
    """Apply fixes until accepted: the safe ones first, others only when those run out."""
    applied: list[Fix] = []
    mended = proposal
    for _ in range(_ROUNDS):
        fixes = _next_fixes(verdict.findings, applied)
        if not fixes:
            return None
        applied.extend(fixes)
        mended = _with_fixes(mended, fixes, catalogue)
        verdict = judge(mended, catalogue)
        if verdict.accepted:
            mended, needed = _fewest(proposal, mended, applied, catalogue, judge)
            return {
                **render(mended),
                "fixes": [fix.description for fix in needed],
                "safe": all(fix.safe for fix in needed),
            }
    return None


def _fewest(
    proposal: Proposal,
    mended: Proposal,
    applied: Sequence[Fix],
    catalogue: Catalogue,
    judge: Judge,
) -> tuple[Proposal, Sequence[Fix]]:
    """Leave out what other fixes make superfluous; what gives something up, and is last, first."""
    if any(isinstance(edit, ReplaceArgument) for fix in applied for edit in fix.edits):
        return mended, applied  # its index holds only after the fixes before it
    needed = list(applied)
    last_first = applied[::-1]
    for fix in sorted(last_first, key=lambda fix: fix.safe):
        fewer = [other for other in needed if other is not fix]
        candidate = _with_fixes(proposal, fewer, catalogue)
        if judge(candidate, catalogue).accepted:
            mended, needed = candidate, fewer
    return mended, needed


def _with_fixes(proposal: Proposal, fixes: Iterable[Fix], catalogue: Catalogue) -> Proposal:
    return apply_edits(proposal, [edit for fix in fixes for edit in fix.edits], catalogue)


def _next_fixes(findings: Iterable[Finding], applied: Sequence[Fix]) -> tuple[Fix, ...]:
    decisive = [f for f in findings if f.undecided or f.severity is Severity.ERROR]
    fresh: list[Fix] = []
    for fix in (finding.fix for finding in decisive):
        if fix is not None and fix not in applied and fix not in fresh:
            fresh.append(fix)
    return tuple(fix for fix in fresh if fix.safe) or tuple(fresh)


def _sources(proposal: Proposal) -> dict[str, str]:
    """Give the texts that locations point into, by the name that locations use."""
    sources = dict(proposal.files)
    if proposal.yaml is not None:
        sources[proposal.yaml.name] = proposal.yaml.text
    places = (
        *(w.location for w in proposal.words),
        *(v.location for v in proposal.environment.values()),
    )
    if proposal.source is not None:
        for place in places:
            if place.source is not None and place.line is not None:
                sources.setdefault(place.source, proposal.source)
    return sources
