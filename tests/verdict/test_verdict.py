"""How findings add up, and how the answer is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.verdict.finding import Finding, Severity
from app.verdict.fix import (
    Fix,
    RemoveFlag,
    ReplaceArgument,
    SetEnvironment,
    SetFlag,
    UnsetEnvironment,
)
from app.verdict.location import Location
from app.verdict.verdict import VERDICT_SCHEMA, NotChecked, Outcome, Verdict

WARNING = Finding(rule="w", severity=Severity.WARNING, message="m")
ERROR = replace(WARNING, rule="e", severity=Severity.ERROR)
OPEN = replace(WARNING, rule="o", undecided=True)


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        ([], Outcome.ACCEPTED),
        ([WARNING], Outcome.ACCEPTED),
        ([WARNING, OPEN], Outcome.UNDETERMINED),
        ([OPEN, ERROR], Outcome.REJECTED),
    ],
)
def test_an_error_outweighs_an_open_question_and_that_a_warning(
    findings: list[Finding], outcome: Outcome
) -> None:
    verdict = Verdict.of("0.32.0", findings)
    assert verdict.outcome is outcome
    assert verdict.accepted is (outcome is Outcome.ACCEPTED)


def test_the_answer_has_every_member_and_the_id_only_if_given() -> None:
    verdict = Verdict.of(
        "0.32.0", [ERROR], not_checked=(NotChecked("r", "the moon"),), settings={"given": {}}
    )
    assert verdict.as_json() == {
        "schema": VERDICT_SCHEMA,
        "verdict": "rejected",
        "accepted": False,
        "vllm_version": "0.32.0",
        "findings": [{"rule": "e", "severity": "error", "message": "m"}],
        "not_checked": [{"rule": "r", "needs": "the moon"}],
        "corrected": None,
        "settings": {"given": {}},
    }
    assert replace(verdict, id=3).as_json()["id"] == 3


def test_a_finding_is_written_with_what_it_has() -> None:
    edits = (
        SetFlag("a", 1),
        RemoveFlag("b"),
        ReplaceArgument(2, "--c"),
        SetEnvironment("D", "1"),
        UnsetEnvironment("E"),
    )
    finding = replace(
        ERROR,
        location=Location(variable="D", text="1"),
        related=(Location(argv_index=0),),
        fix=Fix("do it", edits, safe=False),
        engine_message="no",
        evidence={"a": 1},
        undecided=True,
    )
    body = finding.as_json()
    assert body["location"] == {"variable": "D", "text": "1"}
    assert body["related"] == [{"argv_index": 0}]
    assert body["undecided"] is True
    assert body["engine_message"] == "no"
    assert body["evidence"] == {"a": 1}
    assert body["fix"]["safe"] is False
    assert [edit["kind"] for edit in body["fix"]["edits"]] == [
        "set_flag",
        "remove_flag",
        "replace_argument",
        "set_environment",
        "unset_environment",
    ]


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (Location(source="a.yaml", line=2, column=3), "a.yaml:2:3"),
        (Location(line=2), "input:2:1"),
        (Location(pointer=""), "(root)"),
        (Location(pointer="/config/a"), "/config/a"),
        (Location(argv_index=0), "argument 1"),
        (Location(variable="A"), "environment variable A"),
        (Location(source="command"), "command"),
        (Location(), ""),
    ],
)
def test_a_place_is_said_as_precisely_as_it_is_known(location: Location, text: str) -> None:
    assert str(location) == text
