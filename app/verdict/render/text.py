"""The report that an operator reads in a terminal, and gets from curl."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from app.verdict.finding import Finding, Severity
from app.verdict.jsonable import jsonable
from app.verdict.location import Location
from app.verdict.render.plain import printable, sentence, source_line, where
from app.verdict.verdict import Outcome, Verdict

_HEADLINES: Final = {
    Outcome.ACCEPTED: "accepted: vLLM {version} starts with this",
    Outcome.REJECTED: "rejected: vLLM {version} does not start with this",
    Outcome.UNDETERMINED: "undetermined: whether vLLM {version} starts with this is open",
}
_COLOURS: Final = {
    Outcome.ACCEPTED: "32;1",
    Outcome.REJECTED: "31;1",
    Outcome.UNDETERMINED: "33;1",
    Severity.ERROR: "31;1",
    Severity.WARNING: "33;1",
    Severity.INFO: "36;1",
}
_ORDER: Final = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_WIDTH: Final = 100
# Longer lines are cut around the place, so that the caret stays under it.
_SOURCE_WIDTH: Final = 120


def render_text(verdicts: Sequence[Verdict], *, colour: bool = False) -> str:
    """Render reports, one after the other, ending in a line break."""
    return "\n".join(_report(verdict, colour) for verdict in verdicts)


def _report(verdict: Verdict, colour: bool) -> str:
    names = (verdict.id, verdict.subject)
    name = "".join(f"[{printable(str(name))}] " for name in names if name is not None)
    headline = _HEADLINES[verdict.outcome].format(version=printable(verdict.vllm_version))
    lines = [name + _painted(headline, _COLOURS[verdict.outcome], colour)]
    for finding in sorted(verdict.findings, key=_weight):
        lines += ["", *_finding(finding, verdict.sources, colour)]
    if verdict.not_checked:
        lines += ["", "not checked:"]
        for entry in verdict.not_checked:
            lines += _wrapped(f"{entry.rule}: needs {printable(entry.needs)}", "  ")
    if verdict.suppressed:
        lines += ["", "excepted:"]
        for taken in verdict.suppressed:
            text = f"{taken.finding.rule}: {taken.reason} ({taken.finding.message})"
            lines += _wrapped(printable(text), "  ")
    lines += _corrected(verdict)
    lines += ["", _count(verdict)]
    return "\n".join(lines) + "\n"


def _weight(finding: Finding) -> tuple[int, bool]:
    open_warning = finding.undecided and finding.severity is not Severity.ERROR
    severity = Severity.WARNING if open_warning else finding.severity
    return _ORDER.index(severity), not finding.undecided


def _finding(finding: Finding, sources: Mapping[str, str], colour: bool) -> Iterator[str]:
    kind = "undecided" if finding.undecided else finding.severity.value
    head = f"{kind}[{finding.rule}]"
    first, *rest = _wrapped(f"{head}: {sentence(finding)}", "", "  ")
    yield first.replace(head, _painted(head, _COLOURS[finding.severity], colour), 1)
    yield from rest
    if finding.location is not None:
        yield from _place(finding.location, sources, "-->")
    for location in finding.related:
        yield from _place(location, sources, "see")
    if finding.engine_message is not None:
        yield from _wrapped(f"vLLM says: {printable(finding.engine_message)}", "  = ")
    if finding.fix is not None:
        unsafe = "" if finding.fix.safe else " (gives something up)"
        yield from _wrapped(f"fix: {printable(finding.fix.description)}{unsafe}", "  = ")


def _place(location: Location, sources: Mapping[str, str], arrow: str) -> Iterator[str]:
    text = where(location)
    if not text:
        return
    yield f"  {arrow} {text}"
    line = source_line(sources, location)
    if line is None or location.line is None:
        return
    shown, start, end = _window(line, location)
    gutter = str(location.line)
    margin = " " * len(gutter)
    yield f"  {margin} |"
    yield f"  {gutter} | {shown}"
    yield f"  {margin} | {' ' * start}{'^' * (end - start)}"


def _window(line: str, location: Location) -> tuple[str, int, int]:
    """Cut a line around a place; give it with the place's start and end, in characters."""
    start = min(max((location.column or 1) - 1, 0), len(line))
    end = len(line)
    if location.end_column is not None and location.end_line in {None, location.line}:
        end = min(location.end_column - 1, len(line))
    end = max(end, start + 1)
    offset = 0
    if len(line) > _SOURCE_WIDTH:
        offset = max(0, min(start - _SOURCE_WIDTH // 3, len(line) - _SOURCE_WIDTH))
    shown = line[offset : offset + _SOURCE_WIDTH]
    prefix = "…" if offset else ""
    suffix = "…" if offset + _SOURCE_WIDTH < len(line) else ""
    # Made visible in three parts, since an escaped character is wider than it was.
    before = prefix + printable(shown[: start - offset])
    marked = printable(shown[start - offset : min(end - offset, _SOURCE_WIDTH)]) or " "
    after = printable(shown[min(end - offset, _SOURCE_WIDTH) :]) + suffix
    return (before + marked + after).rstrip(), len(before), len(before) + len(marked)


def _corrected(verdict: Verdict) -> Iterator[str]:
    corrected = verdict.corrected
    if corrected is None:
        return
    yield ""
    safe = corrected.get("safe", True)
    yield "corrected" + (":" if safe else " (gives something up; read the fixes):")
    for fix in corrected.get("fixes", ()):
        yield from _wrapped(printable(str(fix)), "  - ")
    for form in ("command", "config_yaml", "compose", "kubernetes", "python"):
        text = corrected.get(form)
        if isinstance(text, str):
            yield ""
            yield from (f"  {printable(line)}".rstrip() for line in text.rstrip("\n").split("\n"))
            return
    yield ""
    for key in ("env", "args", "config"):
        if corrected.get(key):
            yield f"  {key}: {printable(json.dumps(jsonable(corrected[key])))}"


def _count(verdict: Verdict) -> str:
    counts = Counter(finding.severity for finding in verdict.findings)
    plural = {Severity.ERROR: "errors", Severity.WARNING: "warnings", Severity.INFO: "infos"}
    said = [
        f"{counts[severity]} {severity.value if counts[severity] == 1 else plural[severity]}"
        for severity in _ORDER
        if counts[severity]
    ]
    return ", ".join(said) or "nothing to report"


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _painted(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
