"""The formats that tools read."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from app.rules.registry import default_registry
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag
from app.verdict.location import Location
from app.verdict.render.github import render_github
from app.verdict.render.jsonl import render_jsonl
from app.verdict.render.junit import render_junit
from app.verdict.render.sarif import render_sarif
from app.verdict.verdict import Verdict

FIX = Fix("set it", (SetFlag("logprobs_mode", "processed_logprobs"),), safe=True)
SOURCE = "vllm serve m --return-sampling-mask\n"
PLACE = Location(
    source="serve.sh",
    line=1,
    column=14,
    end_line=1,
    end_column=36,
    text="--return-sampling-mask",
)
ERROR = Finding(
    rule="sampling-mask-logprobs-mode",
    severity=Severity.ERROR,
    message="50% of it:\nall, wrong",
    location=PLACE,
    related=(Location(variable="VLLM_USE_V2_MODEL_RUNNER"),),
    fix=FIX,
    engine_message="no",
)
INFO = Finding(rule="x-unlisted", severity=Severity.INFO, message="\x00<&>")
OPEN = Finding(rule="x-open", severity=Severity.WARNING, message="?", undecided=True)
REJECTED = Verdict.of(
    "0.32.0",
    [ERROR, INFO],
    id="case,1",
    corrected={"command": "vllm serve m --fixed\n", "fixes": ["set it"], "safe": True},
    sources={"serve.sh": SOURCE},
)
UNDETERMINED = Verdict.of("0.28.0", [OPEN])

# The parts of the published schema (sarif-schema-2.1.0.json) that a producer can get wrong.
_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_REGION = {
    "type": "object",
    "required": ["startLine"],
    "additionalProperties": False,
    "properties": {
        **{
            name: {"type": "integer", "minimum": 1}
            for name in ("startLine", "startColumn", "endLine", "endColumn")
        },
        "snippet": _TEXT,
    },
}
_ARTIFACT = {
    "type": "object",
    "required": ["uri"],
    "properties": {"uri": {"type": "string", "format": "uri-reference"}},
}
_LOCATION = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": -1},
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "additionalProperties": False,
            "properties": {"artifactLocation": _ARTIFACT, "region": _REGION},
        },
        "logicalLocations": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "fullyQualifiedName": {"type": "string"},
                    "kind": {"type": "string"},
                },
            },
        },
    },
}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_FIX = {
    "type": "object",
    "required": ["artifactChanges"],
    "additionalProperties": False,
    "properties": {
        "description": _TEXT,
        "artifactChanges": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["artifactLocation", "replacements"],
                "additionalProperties": False,
                "properties": {
                    "artifactLocation": _ARTIFACT,
                    "replacements": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["deletedRegion"],
                            "additionalProperties": False,
                            "properties": {"deletedRegion": _REGION, "insertedContent": _TEXT},
                        },
                    },
                },
            },
        },
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "invocations": {
                        "type": "array",
                        "items": {"type": "object", "required": ["executionSuccessful"]},
                    },
                    "artifacts": {
                        "type": "array",
                        "uniqueItems": True,
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {"location": _ARTIFACT, "contents": _TEXT},
                        },
                    },
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "additionalProperties": False,
                                "properties": {
                                    "name": {"type": "string"},
                                    "semanticVersion": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "additionalProperties": False,
                                            "properties": {
                                                "id": {"type": "string"},
                                                "shortDescription": _TEXT,
                                                "fullDescription": _TEXT,
                                                "help": _TEXT,
                                                "defaultConfiguration": {
                                                    "type": "object",
                                                    "properties": {"level": _LEVEL},
                                                },
                                                "properties": {"type": "object"},
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": _LEVEL,
                                "message": _TEXT,
                                "locations": {"type": "array", "items": _LOCATION},
                                "relatedLocations": {
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": _LOCATION,
                                },
                                "fixes": {"type": "array", "items": _FIX},
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string"},
                                },
                                "properties": {"type": "object"},
                            },
                        },
                    },
                },
            },
        },
    },
}


def sarif_of(*verdicts: Verdict) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(render_sarif(verdicts))
    jsonschema.validate(log, SARIF, cls=jsonschema.Draft7Validator)
    (run,) = log["runs"]
    result: dict[str, Any] = run
    return result


def test_sarif_lists_all_rules_and_points_results_at_them() -> None:
    run = sarif_of(REJECTED, UNDETERMINED)
    rules = run["tool"]["driver"]["rules"]
    assert {d.id for d in default_registry().declarations} <= {rule["id"] for rule in rules}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert [result["level"] for result in run["results"]] == ["error", "note", "warning"]


def test_sarif_regions_are_one_based_and_end_exclusive() -> None:
    result = sarif_of(REJECTED)["results"][0]
    region = result["locations"][0]["physicalLocation"]["region"]
    start, end = region["startColumn"], region["endColumn"]
    assert SOURCE[start - 1 : end - 1] == region["snippet"]["text"] == "--return-sampling-mask"


def test_sarif_fix_replaces_the_text_by_the_corrected_one() -> None:
    run = sarif_of(REJECTED)
    (fix,) = run["results"][0]["fixes"]
    (replacement,) = fix["artifactChanges"][0]["replacements"]
    assert replacement["insertedContent"]["text"] == "vllm serve m --fixed\n"
    assert replacement["deletedRegion"] == {
        "startLine": 1,
        "startColumn": 1,
        "endLine": 2,
        "endColumn": 1,
    }
    assert "fixes" not in run["results"][1]


def test_sarif_fingerprints_survive_a_move_and_tell_findings_apart() -> None:
    def fingerprint(finding: Finding, version: str = "0.32.0") -> str:
        result = sarif_of(Verdict.of(version, [finding]))["results"][0]
        return str(result["partialFingerprints"]["vllmAdmission/v1"])

    moved = Location(source="serve.sh", line=7, column=1, text=PLACE.text)
    again = Finding(rule=ERROR.rule, severity=ERROR.severity, message="worded anew", location=moved)
    assert fingerprint(ERROR) == fingerprint(again)
    assert fingerprint(ERROR) != fingerprint(INFO)
    assert fingerprint(ERROR) != fingerprint(ERROR, "0.33.0")


def test_github_commands_escape_what_would_end_them() -> None:
    lines = render_github([REJECTED]).splitlines()
    assert len(lines) == 2
    assert lines[0] == (
        "::error file=serve.sh,line=1,endLine=1,col=14,endColumn=36,"
        "title=sampling-mask-logprobs-mode (vLLM 0.32.0)::"
        "[case,1] 50%25 of it:%0Aall, wrong%0AvLLM says: no%0Afix: set it"
    )
    assert lines[1].startswith("::notice title=")
    assert render_github([Verdict.of("0.32.0", [])]) == ""


def test_github_properties_escape_colons_and_commas() -> None:
    place = Location(source="a,b:c%.sh", line=1)
    finding = Finding(rule="r", severity=Severity.WARNING, message="m", location=place)
    (line,) = render_github([Verdict.of("0.32.0", [finding])]).splitlines()
    assert "file=a%2Cb%3Ac%25.sh," in line


def test_junit_counts_failures_and_errors_and_drops_what_xml_cannot_hold() -> None:
    root = ElementTree.fromstring(render_junit([REJECTED, UNDETERMINED]))  # noqa: S314 - ours
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("5", "2", "2")
    first, second = root.findall("testsuite")
    assert first.get("name") == "case,1 (vLLM 0.32.0)"
    assert first.findtext("testcase[@name='x-unlisted']/system-out") == "info: \ufffd<&>"
    assert second.find("testcase[@name='starts']/error") is not None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_jsonl_has_one_line_a_verdict(count: int) -> None:
    lines = render_jsonl([REJECTED] * count).splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["case,1"] * count


def test_sources_are_not_part_of_the_answer() -> None:
    assert SOURCE not in render_jsonl([REJECTED])
