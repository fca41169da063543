"""Comments of a YAML text, which no YAML reader keeps.

Source: YAML 1.2.2, 6.6 (a comment begins with `#`, at the start of a line or behind a blank).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.proposal.positions import LineIndex

_COMMENT: Final = re.compile(r"(?:^|(?<=[ \t]))#[^\n]*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment between two offsets; lines that follow one another are one comment."""

    text: str
    start: int
    end: int
    column: int


def comments_of(index: LineIndex, root: Node) -> Iterator[Comment]:
    """Give the comments within a node, and those on the lines right before it."""
    start, end = lines_before(index.text, root.start_mark.index), root.end_mark.index
    found = [match.span() for match in _COMMENT.finditer(index.text, start, end)]
    yield from _joined(index, _outside(found, sorted(_scalars(root)) if found else []))


def parts_of(node: Node) -> Iterator[Node]:
    """Give the nodes that a mapping or a sequence is made of, keys among them."""
    if isinstance(node, MappingNode):
        yield from (part for pair in node.value for part in pair)
    elif isinstance(node, SequenceNode):
        yield from node.value


def nodes_in(root: Node) -> Iterator[Node]:
    """Give every node, each once though aliases repeat it."""
    stack, seen = [root], set[int]()
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(parts_of(node))


def lines_before(text: str, offset: int) -> int:
    """Give where the comments and blank lines before an offset begin."""
    start = text.rfind("\n", 0, offset) + 1
    while start:
        line = text.rfind("\n", 0, start - 1) + 1
        said = text[line : start - 1].strip()
        if said and not said.startswith("#"):
            break
        start = line
    return start


def _scalars(root: Node) -> Iterator[tuple[int, int]]:
    for node in nodes_in(root):
        if isinstance(node, ScalarNode):
            yield node.start_mark.index, node.end_mark.index


def _outside(
    found: list[tuple[int, int]], scalars: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Leave out what stands in a text: there `#` is a character like others."""
    position = 0
    for begin, end in found:
        while position < len(scalars) and scalars[position][1] <= begin:
            position += 1
        if position == len(scalars) or begin < scalars[position][0]:
            yield begin, end


def _joined(index: LineIndex, found: Iterator[tuple[int, int]]) -> Iterator[Comment]:
    held: Comment | None = None
    for begin, end in found:
        _, column = index.line_column(begin)
        text = index.text[begin:end].strip("# \t\r")
        if held is not None:
            between = index.text[held.end : begin]
            if held.column == column and between.count("\n") == 1 and not between.strip():
                held = Comment(f"{held.text} {text}".strip(), held.start, end, column)
                continue
            yield held
        held = Comment(text, begin, end, column)
    if held is not None:
        yield held
