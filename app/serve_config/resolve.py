"""A proposal, resolved for one vLLM version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from app.catalogue import Catalogue
from app.proposal.proposal import Entrypoint, Proposal, Word
from app.serve_config.argparse_rules import parse
from app.serve_config.class_rules import (
    check_setting,
    classes_turned_on,
    engine_argument,
    typed_setting,
)
from app.serve_config.command_line import rewrite
from app.serve_config.config_file import ConfigFile
from app.serve_config.diagnostics import bounded, finding, shorten
from app.serve_config.dynamo import check_dynamo
from app.serve_config.engine_kwargs import read_kwargs
from app.serve_config.environment import check_environment
from app.serve_config.launch_args import check_launch
from app.serve_config.option_table import ByIdentity, option_table
from app.serve_config.serve_args import check_serve_args
from app.serve_config.serve_config import Abstain, Origin, ServeConfig, Setting, Unresolved
from app.serve_config.tokens import Occurrence, Token
from app.serve_config.values import argument_converter, default_value, read_values
from app.verdict.finding import Finding
from app.verdict.location import Location

_MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What one vLLM version reads in a proposal.

    `config` is None where vLLM would end before it has settings at all. A setting that could
    not be read is `Unresolved` in it, so that rules about it abstain. `occurrences` are the
    places that give each flag, in argparse's order, and `config_file` the file that was read;
    `app.proposal.edit` works with them.
    """

    config: ServeConfig | None
    findings: tuple[Finding, ...]
    occurrences: tuple[Occurrence, ...] = ()
    config_file: ConfigFile | None = None


def resolve(proposal: Proposal, catalogue: Catalogue, *, judged: bool = True) -> Resolution:
    """Read a proposal as the vLLM version of `catalogue` does.

    Never raises for what a user wrote: everything vLLM would refuse, and everything that cannot
    be known, is a finding. Without `judged`, values are read but not judged, which is quicker:
    for who wants to know what is given where.
    """
    if proposal.kwargs is not None:
        return _resolve_kwargs(proposal, catalogue)
    return _resolve_words(as_command_line(proposal), catalogue, judged=judged)


def as_command_line(proposal: Proposal) -> Proposal:
    """Give a config file alone as the command `vllm serve --config FILE`."""
    yaml = proposal.yaml
    if yaml is None:
        return proposal
    place = Location(source=yaml.name)
    return replace(proposal, words=(Word("--config", place), Word(yaml.name, place)))


def _resolve_words(proposal: Proposal, catalogue: Catalogue, *, judged: bool) -> Resolution:
    findings = list(proposal.findings)
    table = option_table(catalogue)
    omni = next((w for w in proposal.words if w.text == "--omni"), None)
    if omni is not None and proposal.entrypoint is Entrypoint.SERVE:
        findings.append(
            finding(
                "cli-omni",
                "vLLM hands this command line to the package vLLM-Omni, whose options are not "
                "known here, and does not start without that package",
                location=omni.location,
                undecided=True,
                engine_message=(
                    "--omni flag requires a valid instance of vllm-omni to be installed."
                ),
            )
        )
        return Resolution(config=None, findings=bounded(findings))
    rewritten = rewrite(proposal, table.flags)
    findings.extend(rewritten.findings)
    if rewritten.fatal:
        findings.extend(check_environment(proposal.environment, catalogue, refuse_unknown=False))
        return Resolution(config=None, findings=bounded(findings), config_file=rewritten.config)
    parsed = parse(rewritten.tokens, table)
    findings.extend(_of_vllm(parsed.findings, proposal.program))
    values = read_values(parsed.occurrences, catalogue)
    findings.extend(values.findings)
    if judged:
        findings.extend(_overridden_json(values.occurrences, catalogue))
    findings.extend(_open_word(token) for token in parsed.open_words)
    unknown = _unknown(rewritten.unseen, parsed.open_words)
    settings = _with_defaults(values.settings, catalogue, unknown)
    findings.extend(check_dynamo(proposal, settings))
    served = proposal.entrypoint is Entrypoint.SERVE
    alone = rewritten.config is not None and rewritten.config.alone
    alone = alone or proposal.only_environment or proposal.program is not None
    if not _set_model(settings, positional=served) and unknown is None and not alone:
        findings.append(_no_model(settings, values.occurrences))
    return _finish(
        proposal,
        catalogue,
        settings,
        findings,
        occurrences=tuple(values.occurrences),
        config_file=rewritten.config,
        judged=judged,
    )


def _resolve_kwargs(proposal: Proposal, catalogue: Catalogue) -> Resolution:
    serving = proposal.program is not None
    read = read_kwargs(proposal.kwargs or {}, catalogue, proposal.places, serving=serving)
    findings = [*proposal.findings, *read.findings]
    unknown = Unresolved(proposal.unseen, ", ".join(proposal.unseen)) if proposal.unseen else None
    settings = _with_defaults(read.settings, catalogue, unknown)
    return _finish(proposal, catalogue, settings, findings)


def _finish(
    proposal: Proposal,
    catalogue: Catalogue,
    settings: dict[str, Setting],
    findings: list[Finding],
    occurrences: tuple[Occurrence, ...] = (),
    config_file: ConfigFile | None = None,
    *,
    judged: bool = True,
) -> Resolution:
    if judged:
        settings = _judged(settings, proposal.model_config, catalogue, findings)
    config = ServeConfig(
        catalogue=catalogue,
        settings=settings,
        environment=proposal.environment,
        model_config=proposal.model_config,
        draft_model_config=proposal.draft_model_config,
        hardware=proposal.hardware,
        workload=proposal.workload,
    )
    if judged:
        findings.extend(_of_whole(proposal, config))
    return Resolution(
        config=config,
        findings=bounded(findings),
        occurrences=occurrences,
        config_file=config_file,
    )


def _of_whole(proposal: Proposal, config: ServeConfig) -> Iterator[Finding]:
    """Judge what several settings, or settings and environment, make together."""
    if proposal.kwargs is None:
        yield from check_serve_args(config, proposal.entrypoint)
        yield from check_launch(config)
    try:
        refuse_unknown = bool(config["fail_on_environ_validation"])
    except Abstain:
        refuse_unknown = False
    yield from check_environment(
        proposal.environment, config.catalogue, refuse_unknown=refuse_unknown
    )


def _judged(
    settings: dict[str, Setting],
    model_config: Mapping[str, Any] | None,
    catalogue: Catalogue,
    findings: list[Finding],
) -> dict[str, Setting]:
    """Judge what is given; JSON that its class takes gets the types that pydantic gives it."""
    turned_on = classes_turned_on(settings, model_config, catalogue)
    for dest, setting in settings.items():
        if setting.origin is Origin.DEFAULT:
            continue
        flag = catalogue.by_dest.get(dest) or engine_argument(dest, catalogue)
        found = list(check_setting(flag, setting, catalogue, turned_on))
        findings.extend(found)
        if not found:
            value = typed_setting(flag, setting.value, catalogue)
            if value is not setting.value:
                settings[dest] = replace(setting, value=value)
    return settings


def _with_defaults(
    given: Mapping[str, Setting], catalogue: Catalogue, unknown: Unresolved | None
) -> dict[str, Setting]:
    """Add the defaults; where further settings may come from something unseen, add that."""
    settings = dict(given)
    if unknown is not None:
        for flag in catalogue.flags:
            settings.setdefault(flag.dest, Setting(unknown, Origin.DEFAULT))
        return settings
    for dest, setting in _defaults(ByIdentity(catalogue)).items():
        settings.setdefault(dest, setting)
    return settings


@lru_cache(maxsize=32)
def _defaults(catalogue: ByIdentity) -> dict[str, Setting]:
    flags = catalogue.catalogue.flags
    return {flag.dest: Setting(default_value(flag), Origin.DEFAULT) for flag in flags}


def _unknown(unseen: str | None, open_words: tuple[Token, ...]) -> Unresolved | None:
    if unseen is not None:
        return Unresolved((), unseen)
    if open_words:
        names = tuple(name for token in open_words for name in token.unresolved)
        return Unresolved(names, " ".join(token.text for token in open_words))
    return None


def _overridden_json(occurrences: list[Occurrence], catalogue: Catalogue) -> Iterator[Finding]:
    """Check JSON that a later place replaces: argparse has judged it by then."""
    winners = {occurrence.flag.dest: occurrence for occurrence in occurrences}
    for occurrence in occurrences:
        flag = occurrence.flag
        if occurrence is not winners[flag.dest] and argument_converter(flag).cls is not None:
            setting = Setting(occurrence.value, occurrence.origin, occurrence.location)
            for found in check_setting(flag, setting, catalogue):
                yield replace(found, fix=None)


def _of_vllm(findings: Iterable[Finding], program: str | None) -> Iterator[Finding]:
    """Pass over words that another program's own options may account for."""
    theirs = []
    for found in findings:
        if program is not None and found.rule in {"cli-unknown-flag", "cli-extra-argument"}:
            theirs.append(found)
        else:
            yield found
    if theirs:
        words = ", ".join(f.location.text or "" for f in theirs if f.location is not None)
        yield finding(
            "launch-own-options",
            f"{program} takes options of its own, which are not known here: {shorten(words)}",
            location=theirs[0].location,
        )


def _open_word(token: Token) -> Finding:
    return finding(
        "shell-unresolved-words",
        f"{token.text} may hold options that decide; write them out",
        location=token.location,
        undecided=True,
    )


def _set_model(settings: dict[str, Setting], *, positional: bool) -> bool:
    """Let the positional model win; say whether there is a model at all."""
    tag = settings.get("model_tag")
    if positional and tag is not None and tag.origin is not Origin.DEFAULT:
        settings[_MODEL] = tag
    return settings[_MODEL].origin is not Origin.DEFAULT


def _no_model(settings: Mapping[str, Setting], occurrences: list[Occurrence]) -> Finding:
    swallowing = next((o for o in occurrences if o.flag.nargs == "+" and len(o.values) > 1), None)
    message = f"no model is given, so vLLM serves {settings[_MODEL].value}"
    location = None
    if swallowing is not None:
        last = swallowing.values[-1]
        message += f"; {swallowing.flag.name} has taken {last.text!r}"
        location = last.location
    return finding("cli-no-model", message, location=location)
