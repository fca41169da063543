"""Every bad example makes its rule's finding, every good one makes none, on each version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from app.catalogue import Catalogue, CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.proposal.proposal import Hardware, Proposal
from app.proposal.read import read_example
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
    proposal = read_example(example.text)
    return replace(
        proposal,
        model_config=example.model_config,
        draft_model_config=example.draft_model_config,
        hardware=proposal.hardware if example.gpu is None else Hardware(example.gpu, 8),
    )


def findings_of(entry: Rule, example: Example, version: str) -> list[Finding]:
    config = resolve(proposal_of(example), LIBRARY.get(version)).config
    assert config is not None
    findings, _ = run([entry], config)
    return list(findings)


# vLLM's own text is not quoted (yet); whatever is new has to.
NOT_QUOTED = {
    "model-sparse-attention-index",
    "pooling-attention-contract",
    "pooling-checkpoint-type",
    "speculative-adaptive-conflicts",
    "speculative-adaptive-graphs",
    "speculative-qwen3-omni-draft",
    "speculative-qwen4-method",
    "structured-output-reasoning-parser",
}
# No setting mends these: what is wrong is the checkpoint, or that this version lacks the model.
MODEL_AT_FAULT = {
    "model-architecture-unsupported",
    "model-qwen4-streams",
    "model-rope-type-conflict",
    "model-sparse-attention-index",
}


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
            if finding.severity is Severity.ERROR and entry.id not in NOT_QUOTED:
                assert finding.engine_message
        if finding.engine_message is not None:
            assert "{" not in finding.engine_message


def envelopes_of(example: Example, catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """Give an example in every form that a proposal can have."""
    proposal = proposal_of(example)
    config = resolve(proposal, catalogue).config
    assert config is not None
    given = {
        dest: setting.value
        for dest, setting in config.settings.items()
        if config.given(dest) and dest != "model_tag"
    }
    facts = {
        "env": {name: variable.value for name, variable in proposal.environment.items()},
        "model_config": example.model_config,
        "draft_model_config": example.draft_model_config,
        "hardware": None if example.gpu is None else {"gpu": example.gpu},
    }
    yield {"command": example.text, **facts, "env": None}
    yield {"args": [word.text for word in proposal.words], **facts}
    flags = [w.text for w in proposal.words if w.text[:1] == "-" and not w.text[1:2].isdigit()]
    if len(given.keys() - {"model"}) < len(flags):
        return  # a flag given twice, of which only a command line can tell
    yield {"config": given, **facts}
    yield {
        "config_yaml": yaml.safe_dump(dict(map(partial(_key, catalogue), given.items()))),
        **facts,
    }


def _key(catalogue: Catalogue, setting: tuple[str, Any]) -> tuple[str, Any]:
    """Write a setting as a `--config` file has to: `false` is dropped, `no-flag: true` is not."""
    dest, value = setting
    flag = catalogue.by_dest[dest]
    if value is False:
        negative = flag.negative_options
        return (negative[0].removeprefix("--"), True) if negative else (flag.name[2:], value)
    if isinstance(value, list) and str(flag.conv).startswith("comma_list"):
        value = ",".join(map(str, value))
    return flag.name.removeprefix("--"), value


@pytest.mark.parametrize(
    ("entry", "example", "version"),
    [
        (entry, *case.values[1:3])
        for case in CASES
        if isinstance(entry := case.values[0], Rule) and case.values[3]
        if entry.declaration.severity is Severity.ERROR
    ],
)
def test_the_correction_of_a_bad_example_is_accepted_in_every_form(
    entry: Rule, example: Example, version: str
) -> None:
    catalogue = LIBRARY.get(version)
    for envelope in envelopes_of(example, catalogue):
        verdict = validate(read_envelope(envelope).proposal, catalogue)
        assert entry.id in {f.rule for f in verdict.findings}
        if entry.id in MODEL_AT_FAULT:
            assert not [f for f in verdict.findings if f.rule == entry.id and f.fix is not None]
            continue
        assert verdict.corrected is not None, envelope
        corrected = {k: v for k, v in verdict.corrected.items() if k not in {"fixes", "safe"}}
        facts = {k: envelope[k] for k in ("model_config", "draft_model_config", "hardware")}
        again = validate(read_envelope({**corrected, **facts}).proposal, catalogue)
        assert again.accepted, corrected
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
