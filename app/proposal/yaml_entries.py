"""Replacing, removing and adding the entries of a YAML list or mapping, in its own layout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from yaml.nodes import MappingNode, Node, SequenceNode

_REMARK: Final = re.compile(r"[ \t]+#[^\n]*")


class Entries:
    """The entries of one collection in a text.

    Edits are collected with offsets of the text as it is, and made by `edited`.
    """

    def __init__(self, text: str, node: SequenceNode | MappingNode) -> None:
        """Find the entries of the collection."""
        self._text = text
        self._node = node
        self._flow = bool(node.flow_style)
        self.spans = [_span(text, child) for child in _entries(node)]
        self._splices: list[tuple[int, int, str]] = []
        self._removed: set[int] = set()

    def replace(self, number: int, new: Sequence[str]) -> None:
        """Put these entries, written as YAML, in the place of one; none removes it."""
        start, end = self.spans[number]
        if not new:
            self._removed.add(number)
            return
        self._splices.append((start, end, self._joined(number, new)))

    def add(self, new: Sequence[str], *, before: int | None = None) -> None:
        """Add entries at the end, or before one."""
        if not new or not self.spans:
            if new:
                start, end = self._node.start_mark.index, self._node.end_mark.index
                opening, closing = "{}" if isinstance(self._node, MappingNode) else "[]"
                self._splices.append((start, end, f"{opening}{', '.join(new)}{closing}"))
            return
        if before is None or before >= len(self.spans):
            number = len(self.spans) - 1
            at = self.spans[number][1]
            if not self._flow:
                remark = _REMARK.match(self._text, at)
                at = at if remark is None else remark.end()  # a comment stays with its entry
            separator = self._separator(number)
            self._splices.append((at, at, separator + separator.join(new)))
            return
        at = self.spans[before][0]
        separator = self._separator(before)
        self._splices.append((at, at, "".join(entry + separator for entry in new)))

    def edited(self) -> str:
        """Give the text with the edits made."""
        text = self._text
        for start, end, new in sorted(self.splices(), reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def splices(self) -> list[tuple[int, int, str]]:
        """Give the edits as start, end and new text, in offsets of the text as it is."""
        if self._removed and len(self._removed) == len(self.spans):
            return [self._without_all()]
        return [*self._splices, *map(self._removal, self._removed)]

    def _without_all(self) -> tuple[int, int, str]:
        added = [new.strip(" \n,-") for start, end, new in self._splices if start == end]
        start = self._node.start_mark.index
        end = max(end for _, end in self.spans)
        if self._flow:
            end = self._node.end_mark.index
        opening, closing = "{}" if isinstance(self._node, MappingNode) else "[]"
        return start, end, f"{opening}{', '.join(added)}{closing}"

    def _joined(self, number: int, new: Sequence[str]) -> str:
        return self._separator(number).join(new)

    def _separator(self, number: int) -> str:
        """Give what stands between two entries here."""
        if self._flow:
            return ", "
        start = self.spans[number][0]
        line_start = self._text.rfind("\n", 0, start) + 1
        if isinstance(self._node, SequenceNode):
            dash = self._text.rfind("-", line_start, start)
            lead = self._text[line_start:dash] if not self._text[line_start:dash].strip() else ""
            if lead or dash == line_start:
                return f"\n{lead}{self._text[dash:start]}"
            column = dash - line_start
            return f"\n{' ' * column}{self._text[dash:start]}"
        return "\n" + " " * (start - line_start)

    def _removal(self, number: int) -> tuple[int, int, str]:
        start, end = self.spans[number]
        text = self._text
        if self._flow:
            if number + 1 < len(self.spans):
                return start, self.spans[number + 1][0], ""
            before = max((i for i in range(number) if i not in self._removed), default=None)
            begin = start if before is None else self.spans[before][1]
            return begin, end, ""
        line_start = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", end)
        return line_start, len(text) if line_end < 0 else line_end + 1, ""


def _entries(node: SequenceNode | MappingNode) -> list[tuple[Node, Node]]:
    if isinstance(node, MappingNode):
        return list(node.value)
    return [(item, item) for item in node.value]


def _span(text: str, entry: tuple[Node, Node]) -> tuple[int, int]:
    first, last = entry
    start = first.start_mark.index
    return start, max(start, len(text[: last.end_mark.index].rstrip()))
