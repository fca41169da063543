from __future__ import annotations

import pytest

from app.rules.declaration import Declaration, Example
from app.serve_config.declarations import DECLARATIONS
from app.serve_config.diagnostics import BY_ID, MAX_FINDINGS, shorten
from app.verdict.finding import Severity
from tests.serve_config.reading import LIBRARY, VERSIONS, read, rules

_WITH_EXAMPLE = [(rule, example) for rule in DECLARATIONS for example in rule.bad]


def test_ids_are_unique_and_kebab_case() -> None:
    assert len(BY_ID) == len(DECLARATIONS)
    assert all(rule_id == rule_id.lower() and " " not in rule_id for rule_id in BY_ID)


@pytest.mark.parametrize("rule", DECLARATIONS, ids=lambda rule: rule.id)
def test_a_good_example_has_no_finding_of_its_rule_in_any_version(rule: Declaration) -> None:
    for version in VERSIONS:
        for example in rule.good:
            assert rule.id not in rules(read(example.text, version))


@pytest.mark.parametrize(
    ("rule", "example"), _WITH_EXAMPLE, ids=[rule.id for rule, _ in _WITH_EXAMPLE]
)
def test_a_bad_example_breaks_its_rule_in_every_version_that_has_it(
    rule: Declaration, example: Example
) -> None:
    for version in VERSIONS:
        if rule.applies_to(LIBRARY.get(version).version):
            found = [f for f in read(example.text, version).findings if f.rule == rule.id]
            assert found, version
            assert {f.severity for f in found} == {rule.severity}
            if rule.severity is Severity.ERROR:
                assert found[0].location is not None


def test_long_text_is_cut_for_messages() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab…"


def test_findings_of_one_rule_are_bounded_and_the_rest_is_counted() -> None:
    found = read("vllm serve m " + "-cc.mode=1 " * 200).findings
    assert len(found) == MAX_FINDINGS
    assert found[-1].message.endswith(f"(and {199 - MAX_FINDINGS} more of this kind)")
