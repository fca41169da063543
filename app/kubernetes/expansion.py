"""`$(NAME)` in the strings of a container, as the kubelet expands it.

Source: Kubernetes, `third_party/forked/golang/expansion/expand.go`: `$(NAME)` is replaced where the
container has that variable and left as it is where not; `$$` stands for `$` and so hides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.proposal.positions import LineIndex, NestedText
from app.proposal.proposal import Variable

# What one string, and all of a container, may come to: Linux starts no program with more.
_LONGEST: Final = 128 * 1024
_ALL: Final = 2 * 1024 * 1024


class Room:
    """By how much the strings of a container may still grow when they are expanded."""

    def __init__(self) -> None:
        self.left = _ALL


class Expanded:
    """A string after expansion, which still knows where its characters are written.

    `unresolved` are the variables in it whose value is not known: it holds them as written. So are
    all of one that would become longer than any program takes.
    """

    def __init__(self, written: LineIndex, variables: Mapping[str, Variable], room: Room) -> None:
        self.unresolved: tuple[str, ...] = ()
        source = written.text
        if "$" not in source:
            self.text: LineIndex = written
            return
        out: list[str] = []
        offsets: list[int] = []
        open_names: list[str] = []
        at, grown, most = 0, 0, min(_LONGEST, room.left)
        while at < len(source):
            end, value, name = _step(source, at, variables)
            grown += max(0, len(value) - (end - at))
            if grown > most:
                self.text = written
                self.unresolved = tuple(name for name in variables if f"$({name})" in source)
                return
            plain = end - at == len(value)
            offsets.extend(range(at, end) if plain else [at] * len(value))
            out.append(value)
            if name is not None:
                open_names.append(name)
            at = end
        room.left -= grown
        offsets.append(len(source))
        self.text = NestedText(written, "".join(out), offsets, _escape)
        self.unresolved = tuple(dict.fromkeys(open_names))


def _step(source: str, at: int, variables: Mapping[str, Variable]) -> tuple[int, str, str | None]:
    """Give the end of what begins here, what it becomes, and the variable left open in it."""
    if source[at] != "$":
        end = source.find("$", at)
        end = len(source) if end < 0 else end
        return end, source[at:end], None
    if source.startswith("$$", at):
        return at + 2, "$", None
    close = source.find(")", at)
    if not source.startswith("$(", at) or close < 0:
        return at + 1, "$", None
    name = source[at + 2 : close]
    variable = variables.get(name)
    if variable is None:
        return close + 1, source[at : close + 1], None
    if variable.unresolved:
        return close + 1, source[at : close + 1], name
    return close + 1, variable.value, None


def _escape(new: str) -> str:
    return new.replace("$(", "$$(")
