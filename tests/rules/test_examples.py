"""Every bad example makes its rule's finding, every good one makes none, on each version."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from app.catalogue import CatalogueLibrary
from app.proposal.proposal import Hardware, Proposal
from app.proposal.shell import parse_command
from app.rules.declaration import Example
from app.rules.evaluate import validate
from app.rules.registry import Rule, default_registry, run
from app.serve_config.resolve import resolve
from app.verdict.finding import Finding, Severity

LIBRARY = CatalogueLibrary()
CASES = [
    pytest.param(entry, example, version, bad, id=f"{entry.id}-{kind}{number}-{version}")
    for entry in default_registry().rules
    for kind, bad in (("bad", True), ("good", False))
    for number, example in enumerate(entry.declaration.bad if bad else entry.declaration.good)
    for version in LIBRARY.versions
    if entry.declaration.applies_to(Version(version))
    and SpecifierSet(example.versions, prereleases=True).contains(Version(version))
]


def proposal_of(example: Example) -> Proposal:
    return replace(
        parse_command(example.text),
        model_config=example.model_config,
        hardware=None if example.gpu is None else Hardware(example.gpu, 8),
    )


def findings_of(entry: Rule, example: Example, version: str) -> list[Finding]:
    config = resolve(proposal_of(example), LIBRARY.get(version)).config
    assert config is not None
    findings, _ = run([entry], config)
    return list(findings)


@pytest.mark.parametrize(("entry", "example", "version", "bad"), CASES)
def test_an_example_does_what_it_says(
    entry: Rule, example: Example, version: str, bad: bool
) -> None:
    findings = findings_of(entry, example, version)
    assert bool(findings) is bad, [f.message for f in findings]
    for finding in findings:
        assert finding.rule == entry.id
        assert finding.location is not None
        if finding.undecided:
            assert "undecided" in example.note
        else:
            assert finding.severity is entry.declaration.severity
        if finding.severity is Severity.ERROR:
            assert finding.engine_message
            assert "{" not in finding.engine_message


@pytest.mark.parametrize(
    ("entry", "example", "version"), [c.values[:3] for c in CASES if c.values[3]]
)
def test_a_fix_of_a_bad_example_ends_its_finding(
    entry: Rule, example: Example, version: str
) -> None:
    catalogue = LIBRARY.get(version)
    verdict = validate(proposal_of(example), catalogue)
    mended = [f for f in verdict.findings if f.rule == entry.id and f.fix is not None]
    if verdict.corrected is None or not mended:
        return
    again = validate(proposal_of(replace(example, text=verdict.corrected["command"])), catalogue)
    assert again.accepted
    if any(f.undecided or f.severity is Severity.ERROR for f in mended):
        assert entry.id not in {f.rule for f in again.findings}


def test_every_version_of_every_rule_has_both_examples() -> None:
    for entry in default_registry().rules:
        for version in LIBRARY.versions:
            if not entry.declaration.applies_to(Version(version)):
                continue
            covered = {
                c.values[3] for c in CASES if c.values[0] is entry and c.values[2] == version
            }
            assert covered == {True, False}, (entry.id, version)
