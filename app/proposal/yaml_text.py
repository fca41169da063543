"""The text of a YAML scalar, with where each of its characters is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import yaml
from yaml.nodes import ScalarNode

from app.proposal.positions import LineIndex, NestedText

_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_ESCAPE: Final = re.compile(
    r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|\r?\n[ \t]*|.)", re.DOTALL
)
_PLAIN: Final = re.compile(r"-{0,2}[A-Za-z0-9_./][\w./+=@%-]*", re.ASCII)


def scalar_text(index: LineIndex, node: ScalarNode) -> NestedText:
    """Give a scalar's value as a text within the document.

    Where the writing is too odd to follow, all of it is placed at the scalar's start.
    """
    start, end = node.start_mark.index, node.end_mark.index
    offsets = _aligned(index.text[start:end], node.value, node.style)
    if offsets is None:
        places = [start] * len(node.value) + [end]
    else:
        places = [start + offset for offset in offsets]
    return NestedText(index, node.value, places, _encoder(index, node))


def written(text: str, *, quoted: bool = False) -> str:
    """Write a string as a YAML scalar, plain if that is safe and no quotes are asked for."""
    if not quoted and _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return json.dumps(text, ensure_ascii=False)


def _encoder(index: LineIndex, node: ScalarNode) -> Callable[[str], str]:
    if node.style == "'":
        return lambda new: new.replace("'", "''")
    if node.style == '"':
        return lambda new: json.dumps(new, ensure_ascii=False)[1:-1]
    if node.style in {"|", ">"}:
        indent = _indent(index.text[node.start_mark.index : node.end_mark.index])
        return lambda new: new.replace("\n", f"\n{indent}")
    return lambda new: new


def _indent(raw: str) -> str:
    """Give what the lines of a block scalar are indented by: as its first line with text is."""
    for line in raw.split("\n")[1:]:
        if line.strip():
            return line[: len(line) - len(line.lstrip(" "))]
    return "  "


def _aligned(raw: str, value: str, style: str | None) -> list[int] | None:
    """Find each character of the value in what is written.

    Runs of blanks are folded and indented in many ways; they are matched as runs. Every other
    character must be there, as itself or as an escape of the style.
    """
    offsets: list[int] = []
    at = 0
    if style in {"'", '"'}:
        at = 1
    elif style in {"|", ">"}:
        at = raw.find("\n") + 1
    i = 0
    while i < len(value):
        run = _BLANKS.match(value, i)
        if run is not None:
            at = _skip_joined(raw, at, style)
            there = _BLANKS.match(raw, at)
            if there is not None:
                end = min(run.end(), i + _stands_for(there)) if style == '"' else run.end()
                offsets.extend(_spread(there, end - i, run))
                at, i = there.end(), end
                continue
            if run.end() == len(value) and style in {"|", ">"}:  # a line end that is implied
                offsets.extend([len(raw)] * len(run.group()))
                i = run.end()
                continue
        else:
            at = _skip_joined(raw, at, style)
            blank = _BLANKS.match(raw, at)
            if blank is not None and (style in {"|", ">"} or i == 0):
                at = blank.end()  # indentation
        step = _step(raw, at, value[i], style)
        if step == 0:
            return None
        offsets.append(at)
        at += step
        i += 1
    offsets.append(max(at, len(raw.rstrip()) - (style in {"'", '"'}) if not value else at))
    return offsets


def _stands_for(there: re.Match[str]) -> int:
    """Give how many blanks a run between double quotes is; more may follow it as escapes."""
    ends = there.group().count("\n")
    return max(1, ends - 1) if ends else len(there.group())


def _spread(there: re.Match[str], count: int, run: re.Match[str]) -> list[int]:
    if run.group().startswith(there.group()) and count == len(there.group()):
        return list(range(there.start(), there.end()))
    return [there.start()] * count


def _skip_joined(raw: str, at: int, style: str | None) -> int:
    """Step over line ends that are escaped in double quotes: they stand for nothing."""
    if style != '"':
        return at
    while (joined := re.compile(r"\\\r?\n[ \t]*").match(raw, at)) is not None:
        at = joined.end()
    return at


def _step(raw: str, at: int, char: str, style: str | None) -> int:
    """Give how many characters of `raw` stand for `char`; 0 if none do."""
    if style == "'" and char == "'":
        return 2 if raw.startswith("''", at) else 0
    if style == '"' and raw.startswith("\\", at):
        escape = _ESCAPE.match(raw, at)
        return 0 if escape is None else len(escape.group())
    return 1 if raw.startswith(char, at) else 0
