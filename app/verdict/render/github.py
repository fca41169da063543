"""GitHub workflow commands: one annotation a finding.

Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from app.verdict.finding import Finding, Severity
from app.verdict.render.plain import where
from app.verdict.verdict import Verdict

_COMMANDS: Final = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "notice",
}


def render_github(verdicts: Sequence[Verdict]) -> str:
    """Render one command a line; empty where there are no findings."""
    return "".join(f"{line}\n" for verdict in verdicts for line in _lines(verdict))


def _lines(verdict: Verdict) -> Iterator[str]:
    for finding in verdict.findings:
        properties = ",".join(f"{k}={_property(v)}" for k, v in _properties(verdict, finding))
        yield f"::{_COMMANDS[finding.severity]} {properties}::{_data(_text(verdict, finding))}"


def _properties(verdict: Verdict, finding: Finding) -> Iterator[tuple[str, str]]:
    location = finding.location
    if location is not None and location.source is not None and location.line is not None:
        yield "file", location.source
        yield "line", str(location.line)
        if location.end_line is not None:
            yield "endLine", str(location.end_line)
        if location.column is not None and location.end_line in {None, location.line}:
            yield "col", str(location.column)
            if location.end_column is not None:
                yield "endColumn", str(location.end_column)
    yield "title", f"{finding.rule} (vLLM {verdict.vllm_version})"


def _text(verdict: Verdict, finding: Finding) -> str:
    parts = [finding.message if verdict.id is None else f"[{verdict.id}] {finding.message}"]
    location = finding.location
    if location is not None and location.line is None:
        parts.append(f"at {where(location)}")
    if finding.engine_message is not None:
        parts.append(f"vLLM says: {finding.engine_message}")
    if finding.fix is not None:
        parts.append(f"fix: {finding.fix.description}")
    return "\n".join(parts)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
