"""The upgrade check for the edges: an envelope in, one report a proposal out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.catalogue import CatalogueLibrary
from app.catalogue.compare import History
from app.errors import InvalidEnvelope, Problem
from app.proposal.envelope import Envelope
from app.rules.registry import CrashHook
from app.upgrade.report import Upgrade, upgrade
from app.verdict.verdict import Outcome


def check_upgrade(
    envelope: Envelope,
    library: CatalogueLibrary,
    old: str | None,
    new: str | None,
    on_crash: CrashHook | None = None,
) -> tuple[Upgrade, ...]:
    """Compare versions for each proposal of an envelope.

    `old` may be left out where the envelope, or else the container image, names the version;
    `new` is the newest known one if it is left out.

    Raises:
        UnknownVersion: a version has no catalogue.
        InvalidEnvelope: nothing says which version is in use now, or it is not the older one.
    """
    history = History(library.get(version) for version in library.versions)
    target = library.get(new or library.newest)
    upgrades = []
    for proposal in envelope.proposals:
        image = proposal.image
        named = envelope.vllm_versions[:1] or ((image.vllm_version,) if image is not None else ())
        current = old or next(iter(named), None)
        if current is None:
            problem = Problem("no-version", "say which version it runs with now: `from`")
            raise InvalidEnvelope("an upgrade is from one version to another", (problem,))
        source = library.get(current)
        if source.version >= target.version:
            detail = f"{source.vllm_version} is not older than {target.vllm_version}"
            problem = Problem("versions-in-order", detail)
            raise InvalidEnvelope("an upgrade is from an older version to a newer one", (problem,))
        report = upgrade(proposal, source, target, history, on_crash)
        upgrades.append(replace(report, id=envelope.id))
    return tuple(upgrades)


def answer(upgrades: Sequence[Upgrade]) -> dict[str, Any]:
    """Give the JSON answer: the report itself, or for several services all of them."""
    if len(upgrades) == 1:
        return upgrades[0].as_json()
    return {
        "accepted": all(u.after.accepted for u in upgrades),
        "upgrades": [report.as_json() for report in upgrades],
    }


def overall(upgrades: Sequence[Upgrade]) -> Outcome:
    """The worst outcome of the newer version."""
    outcomes = {report.outcome for report in upgrades}
    order = (Outcome.REJECTED, Outcome.UNDETERMINED)
    return next((outcome for outcome in order if outcome in outcomes), Outcome.ACCEPTED)
