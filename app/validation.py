"""The configuration gate as a function: an envelope in, one verdict a proposal and version out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from app.catalogue import Catalogue, CatalogueLibrary
from app.proposal.edit_text import reread
from app.proposal.envelope import Envelope
from app.proposal.proposal import Proposal
from app.proposal.suppression import Profile
from app.rules.evaluate import judge_only, validate
from app.rules.policy import Policy, without_shared_exceptions
from app.rules.registry import CrashHook
from app.serve_config.diagnostics import finding
from app.settings import Settings
from app.verdict.verdict import Outcome, Verdict, worst

# Verdicts of a document for which a correction is looked for: that takes several judgements each.
_MENDED: Final = 32


def judge(
    envelope: Envelope,
    library: CatalogueLibrary,
    default_version: str | None = None,
    on_crash: CrashHook | None = None,
    *,
    every_setting: bool = False,
    policy: Policy | None = None,
    mend: bool = True,
) -> tuple[Verdict, ...]:
    """Judge each proposal for each version that is asked for.

    If none is, for the version that the proposal itself names (by an annotation, or by the tag of
    its container image), else for the default.
    `on_crash` is told of rules that crashed, which never refuse anything. With `every_setting`,
    verdicts carry the settings that nobody gave too. `policy` is the site's; the envelope can only
    ask for more. Without `mend` no correction is looked for, which is quicker. Of a document with
    several proposals each correction has the safe ones before it too.

    Raises:
        UnknownVersion: a version has no catalogue.
    """
    policy = policy or Policy()
    if envelope.profile is Profile.STRICT:
        policy = replace(policy, profile=Profile.STRICT)
    verdicts: list[Verdict] = []
    written: dict[tuple[str, str | None], str] = {}
    for proposal in envelope.proposals:
        for version in versions_of(envelope, proposal, default_version or library.newest):
            catalogue = library.get(version)
            asked = bool(envelope.vllm_versions or proposal.vllm_version)
            told = _with_image_findings(proposal, catalogue, asked=asked)
            mends = mend and len(verdicts) < _MENDED
            judge_one = partial(
                validate if mends else judge_only,
                catalogue=catalogue,
                on_crash=on_crash,
                every_setting=every_setting,
                policy=policy,
            )
            verdict = judge_one(told)
            # Versions that were asked for are told apart; those of the images make one document.
            document = version if envelope.vllm_versions else "", proposal.source
            if verdict.corrected is not None and document in written:
                further = judge_one(reread(told, written[document])).corrected
                verdict = replace(verdict, corrected=further or verdict.corrected)
            if verdict.corrected is not None and verdict.corrected["safe"]:
                text = verdict.corrected.get(proposal.form.value)
                if isinstance(text, str) and len(envelope.proposals) > 1:
                    written[document] = text
            verdicts.append(replace(verdict, id=envelope.id, subject=proposal.subject))
    return tuple(without_shared_exceptions(verdicts, policy))


def policy_of(settings: Settings) -> Policy:
    """Give what the service's settings say of the site."""
    return Policy(settings.profile, settings.limits)


def versions_of(envelope: Envelope, proposal: Proposal, default: str) -> tuple[str, ...]:
    """Give the versions to judge a proposal for."""
    image = proposal.image
    named = None if image is None else image.vllm_version
    return envelope.vllm_versions or (proposal.vllm_version or named or default,)


def _with_image_findings(proposal: Proposal, catalogue: Catalogue, *, asked: bool) -> Proposal:
    """Say where the image does not tell its version, or tells another one."""
    image = proposal.image
    if image is None:
        return proposal
    version = catalogue.vllm_version
    found = []
    if image.vllm_version is None and not asked:
        text = f"{image.text} does not tell its vLLM version; this was judged for {version}"
        found = [finding("image-version-unknown", text, location=image.location)]
    elif image.vllm_version is not None and image.vllm_version != version and asked:
        text = f"{image.text} has vLLM {image.vllm_version}; this was judged for {version}"
        found = [finding("image-version-differs", text, location=image.location)]
    return replace(proposal, findings=(*found, *proposal.findings))


def answer(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Give the JSON answer: the verdict itself, or for several versions or services all of them."""
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
    return worst(verdict.outcome for verdict in verdicts)
