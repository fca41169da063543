"""SARIF 2.1.0, for code scanning and editors.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from urllib.parse import quote

from app.rules.declaration import Declaration
from app.verdict.finding import Finding, Severity
from app.verdict.jsonable import jsonable
from app.verdict.location import Location
from app.verdict.render.plain import where
from app.verdict.verdict import Suppressed, Verdict

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
# The forms of a corrected proposal that replace the text they came from.
_TEXT_FORMS: Final = ("command", "config_yaml")


def render_sarif(
    verdicts: Sequence[Verdict], *, declarations: Iterable[Declaration] | None = None
) -> str:
    """Render one log with one run; `declarations` are by default all rules there are."""
    if declarations is None:
        from app.rules.registry import default_registry

        declarations = default_registry().declarations
    rules = [_rule(d) for d in sorted(declarations, key=lambda d: d.id)]
    index = {rule["id"]: position for position, rule in enumerate(rules)}
    for rule_id in sorted({f.rule for v in verdicts for f in _all_findings(v)} - index.keys()):
        index[rule_id] = len(rules)
        rules.append({"id": rule_id})
    run = {
        "tool": {
            "driver": {
                "name": "vllm-admission",
                "semanticVersion": _own_version(),
                "rules": rules,
            }
        },
        "invocations": [{"executionSuccessful": True}],
        "columnKind": "unicodeCodePoints",
        "results": [
            *(_result(v, f, index[f.rule]) for v in verdicts for f in v.findings),
            *(
                _excepted(v, entry, index[entry.finding.rule])
                for v in verdicts
                for entry in v.suppressed
            ),
        ],
    }
    artifacts = _artifacts(verdicts)
    if artifacts:
        run["artifacts"] = artifacts
    log = jsonable({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})
    return json.dumps(log, indent=2) + "\n"


def _rule(declaration: Declaration) -> dict[str, Any]:
    remedy = f"{declaration.explanation}\n\n{declaration.remedy}"
    return {
        "id": declaration.id,
        "shortDescription": {"text": declaration.title},
        "fullDescription": {"text": declaration.explanation},
        "help": {"text": remedy, "markdown": remedy},
        "defaultConfiguration": {"level": _LEVELS[declaration.severity]},
        "properties": {
            "tags": [declaration.area, declaration.gate.value],
            "precision": "very-high" if declaration.severity is Severity.ERROR else "high",
            "vllmVersions": declaration.versions or "all",
            "source": declaration.source,
        },
    }


def _result(verdict: Verdict, finding: Finding, rule_index: int) -> dict[str, Any]:
    text = finding.message
    if finding.engine_message is not None:
        text = f"{text}\n\nvLLM says: {finding.engine_message}"
    properties: dict[str, Any] = {"vllmVersion": verdict.vllm_version}
    if verdict.id is not None:
        properties["proposal"] = verdict.id
    if finding.undecided:
        properties["undecided"] = True
    if finding.fix is not None:
        properties["fix"] = finding.fix.as_json()
    body: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "partialFingerprints": {"vllmAdmission/v1": _fingerprint(verdict, finding)},
        "properties": properties,
    }
    if finding.location is not None:
        body["locations"] = [_location(finding.location)]
    if finding.related:
        body["relatedLocations"] = [
            {**_location(place), "id": number} for number, place in enumerate(finding.related)
        ]
    fix = _fix(verdict, finding)
    if fix is not None:
        body["fixes"] = [fix]
    return body


def _all_findings(verdict: Verdict) -> tuple[Finding, ...]:
    return (*verdict.findings, *(entry.finding for entry in verdict.suppressed))


def _excepted(verdict: Verdict, entry: Suppressed, rule_index: int) -> dict[str, Any]:
    suppression = {"kind": "inSource", "status": "accepted", "justification": entry.reason}
    return {**_result(verdict, entry.finding, rule_index), "suppressions": [suppression]}


def _location(location: Location) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if location.source is not None:
        physical: dict[str, Any] = {"artifactLocation": {"uri": quote(location.source)}}
        if location.line is not None:
            physical["region"] = _region(location)
        body["physicalLocation"] = physical
    if place := where(location):
        kind = "variable" if location.variable is not None else "parameter"
        body["logicalLocations"] = [{"fullyQualifiedName": place, "kind": kind}]
    return body


def _region(location: Location) -> dict[str, Any]:
    members = {
        "startLine": location.line,
        "startColumn": location.column,
        "endLine": location.end_line,
        "endColumn": location.end_column,
    }
    region: dict[str, Any] = {name: value for name, value in members.items() if value is not None}
    if location.text is not None:
        region["snippet"] = {"text": location.text}
    return region


def _fingerprint(verdict: Verdict, finding: Finding) -> str:
    """Identify a finding by rule, version and what stands there, not by where it stands."""
    location = finding.location or Location()
    parts = (
        finding.rule,
        verdict.vllm_version,
        str(verdict.id or ""),
        location.source or "",
        location.variable or "",
        location.text or location.pointer or "",
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _fix(verdict: Verdict, finding: Finding) -> dict[str, Any] | None:
    """Offer the corrected text, if the proposal came as a text and the finding is mended by it."""
    corrected, location = verdict.corrected, finding.location
    if corrected is None or finding.fix is None or location is None or location.source is None:
        return None
    text = verdict.sources.get(location.source)
    form = next((f for f in _TEXT_FORMS if isinstance(corrected.get(f), str)), None)
    if text is None or form is None or finding.fix.description not in corrected.get("fixes", ()):
        return None
    lines = text.split("\n")
    whole = {"startLine": 1, "startColumn": 1, "endLine": len(lines)}
    return {
        "description": {"text": "; ".join(corrected["fixes"])},
        "artifactChanges": [
            {
                "artifactLocation": {"uri": quote(location.source)},
                "replacements": [
                    {
                        "deletedRegion": {**whole, "endColumn": len(lines[-1]) + 1},
                        "insertedContent": {"text": corrected[form]},
                    }
                ],
            }
        ],
    }


def _artifacts(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Carry the texts, since a command line is no file that a viewer could open."""
    texts: dict[str, str] = {}
    for verdict in verdicts:
        for source, text in verdict.sources.items():
            texts.setdefault(source, text)
    return [
        {"location": {"uri": quote(source)}, "contents": {"text": text}}
        for source, text in texts.items()
    ]


def _own_version() -> str:
    try:
        return version("vllm-admission")
    except PackageNotFoundError:
        return "0.0.0"
