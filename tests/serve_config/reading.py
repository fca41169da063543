"""Reading a proposal in tests."""

from __future__ import annotations

from typing import Any

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.proposal.read import read_example
from app.serve_config.resolve import Resolution, resolve
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity

LIBRARY = CatalogueLibrary()
VERSIONS = LIBRARY.versions
NEWEST_LAB = "0.32.0"


def read(text: str, version: str = NEWEST_LAB) -> Resolution:
    """Resolve a shell command, or the first server of manifests."""
    return resolve(read_example(text), LIBRARY.get(version))


def read_members(version: str = NEWEST_LAB, **members: Any) -> Resolution:
    """Resolve an envelope given by its members."""
    return resolve(read_envelope(members).proposal, LIBRARY.get(version))


def config_of(resolution: Resolution) -> ServeConfig:
    """Give the configuration, which must be there."""
    assert resolution.config is not None, resolution.findings
    return resolution.config


def errors(resolution: Resolution) -> list[Finding]:
    """Give the findings that reject."""
    return [f for f in resolution.findings if f.severity is Severity.ERROR]


def rules(resolution: Resolution) -> set[str]:
    """Give the rules that have findings."""
    return {f.rule for f in resolution.findings}


def only(resolution: Resolution, rule: str) -> Finding:
    """Give the one finding of a rule."""
    (found,) = [f for f in resolution.findings if f.rule == rule]
    return found
