"""The configuration that the backend runs with, admitted once at start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from app.catalogue import CatalogueLibrary
from app.documents import decode_text
from app.errors import InvalidEnvelope, UnusableInput
from app.proposal.envelope import Envelope
from app.proposal.read import read_text
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig
from app.settings import Settings
from app.validation import judge
from app.verdict.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Admitted:
    """What came of the configured proposal.

    `config` is there only if the verdict does not reject it. `reason` says why the service is
    not ready; None when it is.
    """

    verdict: Verdict | None = None
    config: ServeConfig | None = None
    reason: str | None = None


def admit(settings: Settings, library: CatalogueLibrary) -> Admitted:
    """Judge `VLLM_ADMISSION_SERVE_CONFIG`; never raises for what the user wrote."""
    if settings.serve_config is None:
        return Admitted()
    try:
        envelope = _read(settings.serve_config)
        image = envelope.proposal.image
        named = None if image is None else image.vllm_version
        version = (*envelope.vllm_versions, settings.vllm_version, named, library.newest)
        chosen = next(v for v in version if v is not None)
        envelope = replace(envelope, vllm_versions=(chosen,))
        (verdict,) = judge(envelope, library)
    except UnusableInput as error:
        return Admitted(reason=f"VLLM_ADMISSION_SERVE_CONFIG cannot be read: {error}")
    if verdict.outcome is Outcome.REJECTED:
        errors = "; ".join(
            f"{f.rule}: {f.message}" for f in verdict.findings if f.severity == "error"
        )
        return Admitted(
            verdict=verdict,
            reason=f"vLLM {chosen} would not start with VLLM_ADMISSION_SERVE_CONFIG: {errors}",
        )
    return Admitted(verdict, resolve(envelope.proposal, library.get(chosen)).config)


def _read(setting: str) -> Envelope:
    """Read the setting: a file if there is one of that name, else the text itself."""
    if "\n" not in setting and len(setting) < 4096 and Path(setting).is_file():
        text, source = decode_text(Path(setting).read_bytes(), what=setting), setting
    else:
        text, source = setting, "VLLM_ADMISSION_SERVE_CONFIG"
    envelope = read_text(text, source=source)
    if len(envelope.vllm_versions) > 1:
        raise InvalidEnvelope("the backend has one version; name one in vllm_version")
    if envelope.more:
        names = ", ".join(str(proposal.subject) for proposal in envelope.proposals)
        raise InvalidEnvelope(f"the backend is one server, and several are in this: {names}")
    return envelope
