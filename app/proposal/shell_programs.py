"""Which commands of a script may start a server, judged by their words alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from app.proposal.launch import SHELLS, WRAPPERS
from app.proposal.shell_expand import Variables
from app.proposal.shell_words import Expansion, RawWord

# What a command that starts a server has in its words, and programs that start none.
_OF_VLLM: Final = ("vllm", "huggingfaceserver")
_SERVES: Final = re.compile(r"vllm\s+serve|-m\s+\S*vllm|vllm\.entrypoints|-m\s+huggingfaceserver")
_HARMLESS: Final = frozenset(
    {"echo", "printf", "pgrep", "pkill", "grep", "curl", "wget", "nc", "mkdir", "ls", "cat", "rm"}
    | {"cp", "mv", "ln", "chmod", "chown", "sleep", "tail", "head", "which", "cd", "du", "df"}
)
# Those of the wrappers of which the first word that is no option is the program.
_BEFORE_PROGRAM: Final = frozenset({"exec", "nohup", "command", "time", "setsid", "env"})


def is_open(words: Sequence[RawWord], variables: Variables) -> bool:
    """Whether it is not known which program a command runs."""
    program = _name(words[0])
    if program not in WRAPPERS | SHELLS:
        return False
    for word in words[1:]:
        literal = word.literal or "-"
        if program in _BEFORE_PROGRAM and not (literal[0] == "-" or "=" in literal):
            program = _name(word)
            if program not in WRAPPERS | SHELLS:
                return False  # what follows are its arguments
        named = all(isinstance(part, Expansion) for part in word.parts)
        if named and any(found.unresolved for found in variables.expand(word)):
            return True
    return False


def names_server(words: Sequence[RawWord], text: str) -> bool | None:
    """Whether a command whose words are that text starts a server; None if it may."""
    if _name(words[0]) in _HARMLESS or not any(mark in text for mark in _OF_VLLM):
        return False
    return True if _SERVES.search(text) else None


def _name(word: RawWord) -> str:
    return (word.literal or "").rpartition("/")[2]
