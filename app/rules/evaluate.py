"""The verdict on a proposal for one vLLM version, and the corrected proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from app.catalogue import Catalogue
from app.proposal.positions import LineIndex
from app.proposal.proposal import Proposal
from app.proposal.suppression import Profile, suppressions_in
from app.rules.correction import corrected, decisive, unplaced
from app.rules.derived.devices import device_named
from app.rules.effective import settings_of
from app.rules.policy import Policy, suppressed
from app.rules.registry import CrashHook, Registry, Rule, default_registry, run
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding
from app.verdict.location import Location
from app.verdict.verdict import NotChecked, Outcome, Suppressed, Verdict, worst


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
    registry, policy = registry or default_registry(), policy or Policy()
    verdict = judge_only(
        proposal,
        catalogue,
        registry=registry,
        on_crash=on_crash,
        every_setting=every_setting,
        policy=policy,
    )
    if verdict.accepted or _differ(proposal):
        return verdict

    # To the strict profile warnings count.
    rules = registry.rules if policy.profile is Profile.STRICT else registry.refusing

    def judge(mended: Proposal, suspect: str | None = None) -> Verdict:
        return _judged(mended, catalogue, registry, policy, rules=rules, suspect=suspect)[0]

    mended = corrected(proposal, verdict.findings, catalogue, judge)
    if mended is None:
        told = unplaced(proposal, verdict.findings, catalogue)
        return replace(verdict, findings=(*verdict.findings, *told))
    return replace(verdict, corrected=mended)


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
    verdict, config = _judged(
        proposal, catalogue, registry or default_registry(), policy or Policy(), on_crash
    )
    if config is None:
        settings = None
    else:
        settings = settings_of(config, verdict.findings, every=every_setting)
    sources = {n: t for n, t in _sources(proposal).items() if n not in proposal.file_texts}
    return replace(verdict, settings=settings, sources=sources)


def _judged(
    proposal: Proposal,
    catalogue: Catalogue,
    registry: Registry,
    policy: Policy,
    on_crash: CrashHook | None = None,
    *,
    rules: Sequence[Rule] | None = None,
    suspect: str | None = None,
) -> tuple[Verdict, ServeConfig | None]:
    """Give the verdict without the settings, and the configuration it is about.

    `rules` are those to ask, all if not given. Where a `suspect` is given, findings beside its
    own or the parser's are not looked for once one of those refuses. Of a group of pods each is
    judged, and the configuration is the first one's.
    """
    if proposal.pods:
        judged = [
            _judged(pod, catalogue, registry, policy, on_crash, rules=rules, suspect=suspect)
            for pod in map(partial(_as_pod, proposal), (pod for _, pod in proposal.pods))
        ]
        names = [name for name, _ in proposal.pods]
        return _of_all(names, [verdict for verdict, _ in judged]), judged[0][1]
    catalogue = catalogue.on_platform(_platform(proposal))
    resolution = resolve(proposal, catalogue)
    config = resolution.config
    findings = list(resolution.findings)
    suppressions = (*proposal.suppressions, *suppressions_in(_sources(proposal)))
    if suspect is not None and not suppressions:
        if config is not None and not any(map(decisive, findings)):
            suspects = (entry for entry in rules or () if entry.id == suspect)
            findings.extend(run(suspects, config, on_crash)[0])
        if any(map(decisive, findings)):
            return Verdict.of(catalogue.vllm_version, findings), config
        findings = list(resolution.findings)
    not_checked: list[NotChecked] = []
    if config is not None:
        for found, abstained in (
            run(rules or registry.rules, config, on_crash),
            policy.over_limits(config),
        ):
            findings.extend(found)
            not_checked.extend(abstained)
    findings, taken = suppressed(findings, suppressions, registry.by_id)
    verdict = Verdict.of(
        catalogue.vllm_version,
        [_in_source(found, proposal) for found in findings],
        not_checked=tuple(dict.fromkeys(not_checked)),
        suppressed=tuple(taken),
    )
    outcome = policy.outcome(verdict.outcome, findings)
    if config is None and outcome is Outcome.ACCEPTED:
        # An exception took out what kept it from being read; of the rest nothing is known.
        outcome = Outcome.UNDETERMINED
    return replace(verdict, outcome=outcome), config


def _as_pod(proposal: Proposal, pod: Proposal) -> Proposal:
    """Give the server as one pod of its group starts it."""
    return replace(
        proposal,
        words=pod.words,
        environment=pod.environment,
        entrypoint=pod.entrypoint,
        program=pod.program,
        command=pod.command,
        text=pod.text,
        option_at=pod.option_at,
        findings=pod.findings if _differ(proposal) else proposal.findings,
        pods=(),
    )


def _differ(proposal: Proposal) -> bool:
    """Whether pods of a group run different commands of one script: a fix of one is in another.

    No correction is looked for then.
    """
    return any(pod.command != proposal.command for _, pod in proposal.pods)


def _of_all(names: Sequence[str], verdicts: Sequence[Verdict]) -> Verdict:
    """Add up what is said of the pods of a group; what is said of some of them names those."""
    found: list[tuple[Finding, list[str]]] = []
    taken: list[Suppressed] = []
    for name, verdict in zip(names, verdicts, strict=True):
        for finding in verdict.findings:
            said_of = next((of for other, of in found if other == finding), None)
            if said_of is None:
                found.append((finding, [name]))
            elif name not in said_of:
                said_of.append(name)
        taken.extend(entry for entry in verdict.suppressed if entry not in taken)
    return replace(
        verdicts[0],
        outcome=worst(verdict.outcome for verdict in verdicts),
        findings=tuple(
            finding
            if len(said_of) == len(names)
            else replace(finding, message=f"with {', '.join(said_of)}: {finding.message}")
            for finding, said_of in found
        ),
        not_checked=tuple(dict.fromkeys(n for verdict in verdicts for n in verdict.not_checked)),
        suppressed=tuple(taken),
    )


def _platform(proposal: Proposal) -> str:
    """Name the platform as catalogues do; what is not known of one is as on CUDA."""
    gpu = proposal.hardware.gpu if proposal.hardware is not None else None
    return "cuda" if gpu is None else device_named(gpu).kind.value


def _in_source(found: Finding, proposal: Proposal) -> Finding:
    """Place a finding in the text that was given, where a file it is about stands in that."""
    if not proposal.file_texts:
        return found

    def placed(place: Location) -> Location:
        text = proposal.file_texts.get(place.source or "")
        span = None if text is None else LineIndex(text.text, place.source or "").span(place)
        return place if text is None or span is None else text.location(*span)

    return replace(
        found,
        location=None if found.location is None else placed(found.location),
        related=tuple(map(placed, found.related)),
    )


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
