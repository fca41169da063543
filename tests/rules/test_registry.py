"""One declaration and one function make a rule, wherever they are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.rules.declaration import Declaration
from app.rules.registry import Registry, Rule, default_registry, rule, rules_as_json, rules_in, run
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig, UnresolvedValue
from app.verdict.finding import Finding, Severity
from app.verdict.verdict import Outcome, Verdict

RULE_FILE = '''
    """A rule of a site."""

    from app.rules.registry import rule
    from app.verdict.finding import Severity


    @rule(
        id="site-port",
        title="Ports below 1024 are ours",
        explanation="They are taken.",
        remedy="Take another.",
        severity=Severity.ERROR,
        area="site",
        source="handbook",
    )
    def low_port(config):
        if config["port"] is not None and config["port"] < 1024:
            yield low_port.finding(f"port {config['port']} is ours", location=config.place("port"))
'''


@pytest.fixture(scope="module")
def config() -> ServeConfig:
    return config_of("vllm serve m --port 80")


def config_of(command: str) -> ServeConfig:
    config = resolve(parse_command(command), CatalogueLibrary().get("0.32.0")).config
    assert config is not None
    return config


def raising(error: Exception) -> Iterator[Finding]:
    raise error


def declared(**members: str) -> Declaration:
    texts = dict.fromkeys(("title", "explanation", "remedy", "area", "source"), "-")
    return Declaration(**{"id": "t", "severity": Severity.ERROR, **texts, **members})  # type: ignore[arg-type]


def test_a_rule_is_added_by_a_file_in_a_directory(tmp_path: Path, config: ServeConfig) -> None:
    (tmp_path / "site.py").write_text(textwrap.dedent(RULE_FILE))
    registry = default_registry().extended(rules_in(tmp_path))
    findings, _ = run(registry.rules, config)
    (found,) = [f for f in findings if f.rule == "site-port"]
    assert found.message == "port 80 is ours"
    assert found.location is not None
    assert found.location.text is not None
    assert "site-port" in registry.by_id


def test_two_rules_of_one_id_are_refused(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(textwrap.dedent(RULE_FILE))
    with pytest.raises(ValueError, match="site-port"):
        rules_in(tmp_path)


def test_an_id_may_not_be_declared_for_two_gates() -> None:
    taken = default_registry().rules[0]
    with pytest.raises(ValueError, match=taken.id):
        Registry((taken,), (taken.declaration,))


def test_a_rule_imported_into_another_module_counts_once() -> None:
    module = ModuleType("m")
    entry = default_registry().rules[0]
    vars(module).update(one=entry, other=entry)
    assert rules_in(module) == (entry,)


def test_a_rule_that_lacks_a_fact_abstains_and_says_which(config: ServeConfig) -> None:
    def lacking(config: ServeConfig) -> Iterator[Finding]:
        yield from raising(Abstain("the moon"))

    findings, abstained = run([Rule(declared(), lacking)], config)
    assert findings == ()
    assert [(entry.rule, entry.needs) for entry in abstained] == [("t", "the moon")]


@pytest.mark.parametrize(
    ("severity", "outcome"),
    [(Severity.ERROR, Outcome.UNDETERMINED), (Severity.WARNING, Outcome.ACCEPTED)],
)
def test_an_unresolved_value_leaves_the_verdict_open_only_where_it_could_refuse(
    config: ServeConfig, severity: Severity, outcome: Outcome
) -> None:
    def open_question(config: ServeConfig) -> Iterator[Finding]:
        yield from raising(UnresolvedValue("the value of $MODE"))

    entry = Rule(declared(severity=severity), open_question)
    findings, abstained = run([entry], config)
    assert Verdict.of("0.32.0", findings).outcome is outcome
    said = [f.message for f in findings] + [entry.needs for entry in abstained]
    assert "$MODE" in said[0]


def test_a_crashing_rule_is_told_but_refuses_nothing(config: ServeConfig) -> None:
    def crashing(_: ServeConfig) -> Iterator[Finding]:
        yield entry.finding("seen before", severity=Severity.INFO)
        raise ZeroDivisionError("oops")

    entry = Rule(declared(), crashing)
    crashes: list[tuple[str, Exception]] = []
    findings, _ = run([entry], config, lambda name, error: crashes.append((name, error)))
    assert [f.rule for f in findings] == ["t", "internal-rule-error"]
    assert Verdict.of("0.32.0", findings).outcome is Outcome.ACCEPTED
    assert findings[1].evidence["rule"] == "t"
    assert [(name, str(error)) for name, error in crashes] == [("t", "oops")]


def test_a_rule_runs_only_on_its_versions(config: ServeConfig) -> None:
    @rule(
        id="t",
        title="-",
        explanation="-",
        remedy="-",
        severity=Severity.ERROR,
        area="t",
        source="-",
        versions="<0.32",
    )
    def old(_: ServeConfig) -> Iterator[Finding]:
        yield old.finding("never")

    assert run([old], config) == ((), ())


def test_every_declaration_is_complete_and_listed_in_order() -> None:
    listed = rules_as_json()
    ids = [entry["id"] for entry in listed]
    assert ids == sorted(set(ids))
    for entry in listed:
        assert entry["title"]
        assert not entry["title"].endswith(".")
        assert entry["explanation"]
        assert entry["remedy"]
        assert entry["source"]


def test_every_configuration_rule_has_a_bad_and_a_good_example() -> None:
    for entry in default_registry().rules:
        assert entry.declaration.bad, entry.id
        assert entry.declaration.good, entry.id
