"""The upgrade check: one proposal, two vLLM versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.catalogue import Catalogue
from app.catalogue.compare import History
from app.proposal.edit import apply_edits
from app.proposal.proposal import Form, Proposal
from app.proposal.render import render
from app.rules.evaluate import validate
from app.rules.registry import CrashHook
from app.serve_config.resolve import Resolution, resolve
from app.upgrade.differences import Change, DefaultChange, Differences
from app.verdict.finding import Finding
from app.verdict.fix import (
    Edit,
    RemoveFlag,
    ReplaceArgument,
    SetEnvironment,
    SetFlag,
    UnsetEnvironment,
)
from app.verdict.verdict import Outcome, Verdict

UPGRADE_SCHEMA = "vllm-admission.upgrade/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """What changes for a proposal from one version to another.

    `before` and `after` are the verdicts of both versions on the proposal as it is. `changes` are
    about what it gives, `defaults` about what it leaves open. `new` are findings of `after` that
    `before` does not have, `gone` the other way round. `corrected` is the proposal with its
    settings under their new names and the newer version's fixes, in its own form; None if it
    can stay as it is, or cannot be mended.
    """

    before: Verdict
    after: Verdict
    changes: tuple[Change, ...]
    defaults: tuple[DefaultChange, ...]
    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    corrected: Mapping[str, Any] | None
    subject: str | None = None
    id: Any = None

    @property
    def outcome(self) -> Outcome:
        """The newer version's outcome."""
        return self.after.outcome

    def as_json(self) -> dict[str, Any]:
        """Render as the object that `POST /upgrade` and `--format json` give."""
        body = {
            "schema": UPGRADE_SCHEMA,
            "id": self.id,
            "subject": self.subject,
            "from": self.before.vllm_version,
            "to": self.after.vllm_version,
            "verdict": self.after.outcome.value,
            "accepted": self.after.accepted,
            "before": self.before.outcome.value,
            "changes": [change.as_json() for change in self.changes],
            "findings": {
                "new": [finding.as_json() for finding in self.new],
                "gone": [finding.as_json() for finding in self.gone],
            },
            "defaults": [change.as_json() for change in self.defaults],
            "corrected": None if self.corrected is None else dict(self.corrected),
        }
        for name in ("id", "subject"):
            if body[name] is None:
                del body[name]
        return body


def upgrade(
    proposal: Proposal,
    old: Catalogue,
    new: Catalogue,
    between: History,
    on_crash: CrashHook | None = None,
) -> Upgrade:
    """Compare what two versions make of a proposal; `between` is every version known."""
    before = validate(proposal, old, on_crash=on_crash)
    after = validate(proposal, new, on_crash=on_crash)
    was, now = resolve(proposal, old), resolve(proposal, new)
    differences = Differences(old, new, between)
    changes: list[Change] = []
    defaults: list[DefaultChange] = []
    if was.config is not None:
        changes += differences.of_settings(was.config, now.config, _spelt(was, proposal))
        defaults += differences.of_defaults(was.config, proposal.environment)
    changes += differences.of_environment(proposal.environment)
    renamed = _renamed(proposal, was, changes, old, new)
    corrected = after.corrected
    if renamed is not proposal:
        verdict = validate(renamed, new, on_crash=on_crash)
        mended = {**render(renamed), "fixes": [], "safe": True} if verdict.accepted else None
        corrected = _with_renames(verdict.corrected or mended, changes)
    return Upgrade(
        before=before,
        after=after,
        changes=tuple(changes),
        defaults=tuple(defaults),
        new=_without(after.findings, before.findings),
        gone=_without(before.findings, after.findings),
        corrected=corrected,
        subject=proposal.subject,
    )


def _without(findings: tuple[Finding, ...], others: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Give the findings that say of a place what none of the others says of it."""
    said = {(found.rule, str(found.location)) for found in others}
    return tuple(f for f in findings if (f.rule, str(f.location)) not in said)


def _spelt(resolution: Resolution, proposal: Proposal) -> dict[str, str]:
    """Give the options as they are written on the command line, without `=` and dotted keys."""
    spelt: dict[str, str] = {}
    for occurrence in resolution.occurrences:
        option = occurrence.option
        if option is not None and option.argv and option.argv[0] < len(proposal.words):
            word = proposal.words[option.argv[0]].text.partition("=")[0]
            spelt[occurrence.flag.dest] = word.partition(".")[0].replace("_", "-")
    return spelt


def _renamed(
    proposal: Proposal,
    was: Resolution,
    changes: list[Change],
    old: Catalogue,
    new: Catalogue,
) -> Proposal:
    """Give the proposal with what was renamed under its new name."""
    edited = proposal
    for change in changes:
        if change.kind not in {"renamed", "environment-removed"} or change.replacement is None:
            continue
        if change.kind == "environment-removed":
            edited = _moved_variable(edited, change, old, new)
            continue
        flag = new.by_option.get(change.replacement.partition(".")[0])
        before = old.by_option.get(change.name)
        if flag is None or before is None or was.config is None:
            continue
        place = _option_place(edited, change.name, old)
        if place is not None and "." not in change.replacement:
            edited = apply_edits(edited, [_place_edit(edited, place, change.replacement)], new)
            continue
        dest = ".".join((flag.dest, *change.replacement.split(".")[1:]))
        edited = apply_edits(edited, [RemoveFlag(before.dest)], old)
        edited = apply_edits(edited, [SetFlag(dest, was.config.settings[before.dest].value)], new)
    return edited


def _option_place(proposal: Proposal, name: str, old: Catalogue) -> int | None:
    """Give the word that is the option, if it is given once and as a word of its own."""
    if proposal.form in {Form.CONFIG, Form.PYTHON, Form.CONFIG_YAML}:
        return None
    flag = old.by_option[name]
    places = [o.option for o in resolve(proposal, old).occurrences if o.flag.dest == flag.dest]
    if len(places) != 1 or places[0] is None or places[0].dotted or not places[0].argv:
        return None
    at = places[0].argv[0]
    return at if at < len(proposal.words) else None


def _place_edit(proposal: Proposal, at: int, spelling: str) -> Edit:
    """Give the edit that writes an option in another spelling, its `=value` kept."""
    _, equals, value = proposal.words[at].text.partition("=")
    return ReplaceArgument(at, f"{spelling}{equals}{value}")


def _moved_variable(proposal: Proposal, change: Change, old: Catalogue, new: Catalogue) -> Proposal:
    variable = proposal.environment.get(change.name)
    replacement = change.replacement or ""
    if variable is None or variable.unresolved:
        return proposal
    edits: list[Edit] = [UnsetEnvironment(change.name)]
    flag = new.by_option.get(replacement)
    if flag is not None:
        edits.append(SetFlag(flag.dest, variable.value))
    elif new.env_vars[replacement].parse == old.env_vars[change.name].parse:
        edits.append(SetEnvironment(replacement, variable.value))
    else:
        return proposal  # the old value would mean something else
    return apply_edits(proposal, edits, new)


def _with_renames(
    corrected: Mapping[str, Any] | None, changes: list[Change]
) -> Mapping[str, Any] | None:
    if corrected is None:
        return None
    renames = [
        f"write {change.replacement} for {change.name}"
        for change in changes
        if change.kind in {"renamed", "environment-removed"} and change.replacement is not None
    ]
    return {**corrected, "fixes": [*renames, *corrected.get("fixes", ())]}
