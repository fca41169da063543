"""JUnit XML, as continuous integration systems read it: a suite a verdict, a case a finding.

The case of the whole proposal fails if it is rejected and errs if it is undetermined; warnings
and infos are output of cases that pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from app.verdict.finding import Finding, Severity
from app.verdict.render.plain import where
from app.verdict.verdict import Outcome, Verdict

# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(verdicts: Sequence[Verdict]) -> str:
    """Render one `testsuites` document."""
    root = Element("testsuites", name="vllm-admission")
    for verdict in verdicts:
        _suite(root, verdict)
    for counter in ("tests", "failures", "errors"):
        root.set(counter, str(sum(int(suite.get(counter, "0")) for suite in root)))
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _suite(root: Element, verdict: Verdict) -> None:
    name = f"vLLM {verdict.vllm_version}"
    if verdict.id is not None:
        name = f"{verdict.id} ({name})"
    suite = SubElement(root, "testsuite", name=_xml(name))
    case = SubElement(suite, "testcase", classname=_xml(name), name="starts")
    if verdict.outcome is Outcome.REJECTED:
        SubElement(case, "failure", type="rejected", message="vLLM does not start with this")
    elif verdict.outcome is Outcome.UNDETERMINED:
        SubElement(case, "error", type="undetermined", message="whether vLLM starts is open")
    for finding in verdict.findings:
        _case(suite, name, finding)
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))


def _case(suite: Element, name: str, finding: Finding) -> None:
    case = SubElement(suite, "testcase", classname=_xml(name), name=_xml(finding.rule))
    kind = {Severity.ERROR: "failure"}.get(finding.severity, "system-out")
    kind = "error" if finding.undecided else kind
    body = SubElement(case, kind)
    if kind != "system-out":
        body.set("type", _xml(finding.rule))
        body.set("message", _xml(finding.message))
    body.text = _xml(_details(finding))


def _details(finding: Finding) -> str:
    lines = [f"{finding.severity.value}: {finding.message}"]
    if finding.location is not None and (place := where(finding.location)):
        lines.append(f"at {place}")
    if finding.engine_message is not None:
        lines.append(f"vLLM says: {finding.engine_message}")
    if finding.fix is not None:
        lines.append(f"fix: {finding.fix.description}")
    return "\n".join(lines)


def _xml(text: str) -> str:
    return _FORBIDDEN.sub("�", text)
