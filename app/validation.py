"""The configuration gate as a function: an envelope in, one verdict a version out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import Envelope
from app.rules.evaluate import validate
from app.rules.registry import CrashHook
from app.verdict.verdict import Outcome, Verdict


def judge(
    envelope: Envelope,
    library: CatalogueLibrary,
    default_version: str | None = None,
    on_crash: CrashHook | None = None,
) -> tuple[Verdict, ...]:
    """Judge a proposal for each version it names; for the default version if it names none.

    `on_crash` is told of rules that crashed, which never refuse anything.

    Raises:
        UnknownVersion: a version has no catalogue.
    """
    versions = envelope.vllm_versions or (default_version or library.newest,)
    catalogues = [library.get(version) for version in versions]
    return tuple(
        replace(validate(envelope.proposal, catalogue, on_crash=on_crash), id=envelope.id)
        for catalogue in catalogues
    )


def answer(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Give the JSON answer: the verdict itself, or for several versions all of them."""
    if len(verdicts) == 1:
        return verdicts[0].as_json()
    body: dict[str, Any] = {
        "id": verdicts[0].id,
        "verdict": overall(verdicts).value,
        "accepted": all(v.accepted for v in verdicts),
        "verdicts": [verdict.as_json() for verdict in verdicts],
    }
    if body["id"] is None:
        del body["id"]
    return body


def overall(verdicts: Sequence[Verdict]) -> Outcome:
    """The worst of several outcomes: rejected, then undetermined, then accepted."""
    outcomes = {verdict.outcome for verdict in verdicts}
    order = (Outcome.REJECTED, Outcome.UNDETERMINED)
    return next((outcome for outcome in order if outcome in outcomes), Outcome.ACCEPTED)
