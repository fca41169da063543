"""Edits of engine arguments in Python source: of its text, so that the rest stays."""

from __future__ import annotations

from typing import Any

from app.proposal.edit_kwargs import edit_kwargs
from app.proposal.edit_text import innermost, reread
from app.proposal.proposal import Proposal
from app.serve_config.serve_config import Unresolved
from app.verdict.fix import Edit


def edit_python(proposal: Proposal, edit: Edit) -> Proposal:
    """Apply one edit; what is not written as an argument of the call is left as it is."""
    before = dict(proposal.kwargs or {})
    after = dict(edit_kwargs(before, edit))
    index = innermost(proposal)
    splices: list[tuple[int, int, str]] = []
    for key in before.keys() | after.keys():
        if key in before and key in after and before[key] == after[key]:
            continue
        place = proposal.places.get(key)
        span = None if place is None else index.span(place)
        if key in after and _open(after[key]):
            return proposal
        if span is None:
            splices.append(_added(proposal, f"{key}={after[key]!r}"))
            continue
        written = index.text[span[0] : span[1]]
        keyword = written.startswith(f"{key}") and "=" in written
        if not keyword and key != "model":
            return proposal  # it comes from a dictionary that is written elsewhere
        if key in after:
            new = f"{after[key]!r}"
            splices.append((*span, f"{key}={new}" if keyword else new))
        else:
            splices.append(_removed(index.text, *span))
    text = index.text
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    edited = reread(proposal, text)
    return edited if dict(edited.kwargs or {}) == after else proposal


def _open(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_open, value.values()))
    if isinstance(value, list):
        return any(map(_open, value))
    return isinstance(value, Unresolved)


def _added(proposal: Proposal, argument: str) -> tuple[int, int, str]:
    """Place an argument after the last one, on a line of its own if that is so."""
    index = innermost(proposal)
    spans = [span for place in proposal.places.values() if (span := index.span(place))]
    if not spans:
        place = proposal.command
        span = None if place is None else index.span(place)
        at = index.text.index("(", span[1] if span else 0) + 1
        return at, at, argument
    start, end = max(spans)
    line_start = index.text.rfind("\n", 0, start) + 1
    lead = index.text[line_start:start]
    return end, end, f",\n{lead}{argument}" if lead and not lead.strip() else f", {argument}"


def _removed(text: str, start: int, end: int) -> tuple[int, int, str]:
    """Take an argument out with its comma, and its line if nothing else is on it."""
    after = end
    while after < len(text) and text[after] in " \t":
        after += 1
    if text.startswith(",", after):
        after += 1
        line_start = text.rfind("\n", 0, start) + 1
        if not text[line_start:start].strip() and text.startswith("\n", after):
            return line_start, after + 1, ""
        while after < len(text) and text[after] in " \t":
            after += 1
        return start, after, ""
    before = len(text[:start].rstrip())
    return (before - 1, end, "") if text[:before].endswith(",") else (start, end, "")
