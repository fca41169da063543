"""What commands of a shell script may do, where it is not known whether, or how often, they run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.proposal.shell_arithmetic import assigned_in
from app.proposal.shell_lexer import SimpleCommand
from app.proposal.shell_syntax import List, Loop, parts_of
from app.proposal.shell_words import Expansion, RawWord

# Builtins that assign the variables that they are given, by name or as `NAME=value`.
_ASSIGNING: Final = frozenset(
    {"export", "declare", "typeset", "readonly", "local", "unset", "read", "mapfile", "readarray"}
)
_UNKNOWN: Final = {
    "source": "sets what cannot be known",
    ".": "sets what cannot be known",
    "eval": "runs what cannot be known",
    "trap": "sets what is run later",
    "alias": "changes commands",
    "unalias": "changes commands",
    "enable": "changes commands",
    "exit": "ends the script",
    "return": "ends the script",
    "let": "sets variables",
    "getopts": "sets variables",
}
# In these an assignment in front stays.
_SPECIAL: Final = frozenset(
    {":", "break", "continue", "export", "readonly", "set", "shift", "times", "unset", "exec"}
)
_SET_IF_UNSET: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[^]]*\])?:?=", re.ASCII)
_ENDS_IF_UNSET: Final = re.compile(r"\$\{\w+(?:\[[^]]*\])?:?\?", re.ASCII)


@dataclass(slots=True)
class Effects:
    """What a part of a script may change.

    `names` are variables that it may set. `prevented` is the first word of a command that may do
    more, such as starting a server, and `reason` what that is. `leaves` tells whether a loop may
    end otherwise than by its condition.
    """

    names: set[str] = field(default_factory=set)
    prevented: RawWord | None = None
    reason: str = ""
    leaves: bool = False


def effects_of(
    parts: Sequence[List], starts: Callable[[SimpleCommand, Sequence[RawWord]], bool]
) -> Effects:
    """Tell what lists may do; `starts` tells whether a command may start a server."""
    effects = Effects()
    for part in parts:
        _of_list(part, effects, starts)
    return effects


def _of_list(
    part: List, effects: Effects, starts: Callable[[SimpleCommand, Sequence[RawWord]], bool]
) -> None:
    for node in (node for entry in part for pipeline in entry for node in pipeline.nodes):
        if isinstance(node, SimpleCommand):
            _of_command(node, effects, starts)
            continue
        if isinstance(node, Loop):
            effects.names.update({node.variable} - {""})
            effects.names.update(set_by(node.words))
        inner = Effects() if isinstance(node, Loop) else effects
        for below in parts_of(node):
            _of_list(below, inner, starts)
        if inner is not effects:  # a `break` in it leaves it alone
            effects.names |= inner.names
            if effects.prevented is None:
                effects.prevented, effects.reason = inner.prevented, inner.reason


def _of_command(
    command: SimpleCommand,
    effects: Effects,
    starts: Callable[[SimpleCommand, Sequence[RawWord]], bool],
) -> None:
    words = command.words
    effects.names.update(set_by(words))
    effects.names.update(set_by([r.target for r in command.redirections]))
    count = next((i for i, w in enumerate(words) if w.assignment is None), len(words))
    assigned, rest = words[:count], words[count:]
    while len(rest) > 1 and rest[0].literal in {"command", "builtin", "time"}:
        if rest[0].literal == "command" and (rest[1].literal or "-")[0] == "-":
            return  # it looks for a program
        rest = rest[1:]
    program = rest[0].literal if rest else None
    if program is None or program in _SPECIAL:
        effects.names.update(word.assignment or "" for word in assigned)
    reason = _prevents(command, rest, program, starts) if rest else None
    if reason is None and any(_ENDS_IF_UNSET.search(p.raw) for p in _expansions(words)):
        reason = "may end the script"
    if program in _ASSIGNING:
        effects.names.update(_named(rest[1:]))
    elif program == "printf" and len(rest) > 2 and rest[1].literal == "-v":
        effects.names.add(rest[2].literal or "")
    effects.leaves = effects.leaves or program == "break"
    if reason is not None and effects.prevented is None:
        effects.prevented, effects.reason = words[0], reason


def _prevents(
    command: SimpleCommand,
    rest: Sequence[RawWord],
    program: str | None,
    starts: Callable[[SimpleCommand, Sequence[RawWord]], bool],
) -> str | None:
    """Give why a command cannot be passed over."""
    if program is None:
        return "may start anything"
    if program == "exec":
        return "takes the place of the script" if len(rest) > 1 else None
    if program in _ASSIGNING:
        given = [word.literal for word in rest[1:] if word.assignment is None]
        refers = any(text is None or (text[:1] == "-" and "n" in text) for text in given)
        return "sets what cannot be known" if refers and program != "read" else None
    if program == "cat" and {"<<", "<<-"} & {r.operator for r in command.redirections}:
        written = any(r.operator in {">", ">|", ">>"} for r in command.redirections)
        return "writes a file" if written else None
    if program in _UNKNOWN:
        return _UNKNOWN[program]
    return "may start a server" if starts(command, rest) else None


def assigned_by(command: SimpleCommand) -> set[str]:
    """Give the variables that a builtin sets which is not carried out."""
    effects = Effects()
    _of_command(command, effects, lambda _, __: False)
    words = [*command.words, *(r.target for r in command.redirections)]
    return effects.names - set(set_by(words)) | set(set_by(words, unread=True))


def _named(words: Sequence[RawWord]) -> Iterator[str]:
    """Give the variables that a builtin is given."""
    for word in words:
        name = word.assignment or word.literal or ""
        if name.isidentifier():
            yield name
    if not words or all((word.literal or "-")[:1] == "-" for word in words):
        yield "REPLY"
        yield "MAPFILE"


def set_by(words: Sequence[RawWord], *, unread: bool = False) -> Iterator[str]:
    """Give the variables that expanding words may set; `unread` ones are not set by it here."""
    for part in _expansions(words):
        if not (unread and (part.name or part.arithmetic is not None)):
            yield from _SET_IF_UNSET.findall(part.raw)
            if part.raw.startswith("$(("):
                yield from assigned_in(part.raw)


def _expansions(words: Sequence[RawWord]) -> Iterator[Expansion]:
    for word in words:
        for part in (*word.parts, *(p for value in word.values or () for p in value.parts)):
            if isinstance(part, Expansion):
                yield part
