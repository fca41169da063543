"""The compound commands of shell text, put together from simple ones.

Source: POSIX.1-2024, XCU 2.9 and 2.10; `case`, functions and `select` are refused with their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.errors import MalformedDocument
from app.proposal.shell_lexer import BEFORE_COMMAND, SimpleCommand
from app.proposal.shell_words import RawWord

MAX_DEPTH: Final = 16  # of compound commands in each other
_CLOSING: Final = frozenset({"then", "else", "elif", "fi", "do", "done", "}"})
RESERVED: Final = (
    BEFORE_COMMAND | _CLOSING | frozenset({"for", "case", "esac", "select", "function", "coproc"})
)
_SEPARATORS: Final = frozenset({"", ";", "\n", "&"})
# Operators that are words, as they are within `[[`.
_IN_TEST: Final = frozenset({"&&", "||", "|", "|&", "(", ")", "<", ">"})
_PIPES: Final = frozenset({"|", "|&"})


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands between pipes; `after` is the `&&` or `||` before it, if there is one."""

    nodes: tuple[Node, ...]
    negated: bool = False
    after: str = ""
    background: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """`if`: each condition with what is run where it holds, and what is run where none does."""

    word: RawWord
    branches: tuple[tuple[List, List], ...]
    otherwise: List


@dataclass(frozen=True, slots=True)
class Loop:
    """`while`, `until` and `for`; the latter with its variable instead of a condition."""

    word: RawWord
    condition: List
    body: List
    variable: str = ""
    words: tuple[RawWord, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """`{ …; }`."""

    word: RawWord
    body: List


Node = SimpleCommand | If | Loop | Group
# Commands in their order: those that `&&` and `||` join are one entry.
List = tuple[tuple[Pipeline, ...], ...]
Refuse = Callable[[str, str, RawWord], MalformedDocument]


def parse(commands: Sequence[SimpleCommand], refuse: Refuse, *, bash: bool) -> List:
    """Put the commands of a script together, as `bash` reads it or any shell.

    Raises:
        MalformedDocument: what `refuse` makes of a compound command that is not read.
    """
    for word in (word for command in commands for word in command.words if not bash):
        if word.literal in _IN_TEST and not word.quoted:
            detail = f"`{word.literal}` in `[[` is not to every shell what it is to bash"
            raise refuse("shell-compound-command", detail, word)
    return _Parser(commands, refuse).script()


def simple_commands(body: List) -> Iterator[SimpleCommand]:
    """Give every simple command, however deep."""
    for entry in body:
        for pipeline in entry:
            for node in pipeline.nodes:
                if isinstance(node, SimpleCommand):
                    yield node
                for part in parts_of(node):
                    yield from simple_commands(part)


def parts_of(node: Node) -> tuple[List, ...]:
    """Give the lists of a compound command."""
    if isinstance(node, If):
        return (*(part for branch in node.branches for part in branch), node.otherwise)
    if isinstance(node, Loop):
        return (node.condition, node.body)
    return (node.body,) if isinstance(node, Group) else ()


class _Parser:
    def __init__(self, commands: Sequence[SimpleCommand], refuse: Refuse) -> None:
        self._commands = commands
        self._refuse = refuse
        self._number = 0  # of the command, and the word in it, that come next
        self._word = 0
        self._depth = 0

    def script(self) -> List:
        found = self._list(frozenset())
        word = self._keyword()
        if word is not None:
            raise self._unread(word)
        return found

    # what comes next

    @property
    def _current(self) -> SimpleCommand | None:
        return self._commands[self._number] if self._number < len(self._commands) else None

    def _keyword(self) -> RawWord | None:
        """Give the next word if it is a reserved one; all that comes before it is read."""
        command = self._current
        if command is None or self._word >= len(command.words):
            return None
        word = command.words[self._word]
        return word if word.literal in RESERVED and not word.quoted else None

    def _take(self, begun: RawWord, *expected: str) -> str:
        """Step over one of the expected reserved words."""
        word = self._keyword()
        if word is None or word.literal not in expected:
            raise self._refuse(
                "shell-compound-command",
                f"`{begun.literal}` is not followed by {' or '.join(f'`{e}`' for e in expected)}",
                word or begun,
            )
        self._word += 1
        return word.literal

    def _skip_line(self) -> None:
        """Step to the next command if nothing follows the reserved word: it begins there."""
        command = self._current
        if command is None or self._word < len(command.words):
            return
        if not command.redirections and command.operator in {"", "\n"}:
            self._number, self._word = self._number + 1, 0

    def _end(self, closing: str) -> str:
        """Step behind a compound command; give the operator that follows it."""
        command = self._current
        if command is None:
            return ""
        word = self._keyword()
        if word is not None and word.literal in _CLOSING:
            return ""
        if self._word < len(command.words):
            at = command.words[self._word]
            raise self._refuse("shell-compound-command", f"nothing can follow `{closing}` here", at)
        self._number, self._word = self._number + 1, 0
        return command.operator

    # lists

    def _filled(self, begun: RawWord, *stops: str) -> List:
        """Read a list that may not be empty."""
        found = self._list(frozenset(stops))
        if not found:
            raise self._refuse(
                "shell-compound-command", f"a part of `{begun.literal}` is empty", begun
            )
        return found

    def _list(self, stops: frozenset[str]) -> List:
        found: list[tuple[Pipeline, ...]] = []
        entry: list[Pipeline] = []
        after = ""
        while self._current is not None:
            word = self._keyword()
            if word is not None and word.literal in stops:
                break
            pipeline, operator = self._pipeline(after)
            entry.append(pipeline)
            after = operator if operator not in _SEPARATORS else ""
            if not after:
                found.append(tuple(entry))
                entry = []
        if entry:
            found.append(tuple(entry))
        return tuple(found)

    def _pipeline(self, after: str) -> tuple[Pipeline, str]:
        negated = False
        while (word := self._keyword()) is not None and word.literal == "!":
            self._word += 1
            negated = not negated
        nodes: list[Node] = []
        while True:
            node, operator = self._node()
            nodes.append(node)
            if operator not in _PIPES or self._current is None:
                return Pipeline(tuple(nodes), negated, after, operator == "&"), operator

    def _node(self) -> tuple[Node, str]:
        word = self._keyword()
        if word is None:
            command = self._current or SimpleCommand()
            words = command.words[self._word :]
            self._number, self._word = self._number + 1, 0
            return SimpleCommand(words, command.redirections, command.operator), command.operator
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse("shell-depth", "commands in commands are not followed further", word)
        self._word += 1
        self._skip_line()
        node: Node
        if word.literal == "if":
            node, closing = self._if(word), "fi"
        elif word.literal in {"while", "until"}:
            condition = self._filled(word, "do")
            node, closing = Loop(word, condition, self._body(word)), "done"
        elif word.literal == "for":
            node, closing = self._for(word), "done"
        elif word.literal == "{":
            body = self._filled(word, "}")
            self._take(word, "}")
            node, closing = Group(word, body), "}"
        else:
            raise self._unread(word)
        self._depth -= 1
        return node, self._end(closing)

    # compound commands

    def _if(self, word: RawWord) -> If:
        branches: list[tuple[List, List]] = []
        otherwise: List = ()
        while True:
            condition = self._filled(word, "then")
            self._take(word, "then")
            self._skip_line()
            body = self._filled(word, "else", "elif", "fi")
            branches.append((condition, body))
            closing = self._take(word, "else", "elif", "fi")
            if closing != "fi":
                self._skip_line()
            if closing == "else":
                otherwise = self._filled(word, "fi")
                closing = self._take(word, "fi")
            if closing == "fi":
                return If(word, tuple(branches), otherwise)

    def _body(self, word: RawWord) -> List:
        self._take(word, "do")
        self._skip_line()
        body = self._filled(word, "done")
        self._take(word, "done")
        return body

    def _for(self, word: RawWord) -> Loop:
        """Read `for NAME [in WORD …]`, with the `do` on the same line or after it."""
        command = self._current
        given = command.words[self._word :] if command is not None else []
        name = given[0].literal if given else None
        listed = len(given) > 1 and given[1].literal == "in" and not given[1].quoted
        if command is None or name is None or not (name.isidentifier() and name.isascii()):
            raise self._unread(word)
        if not listed and len(given) > 1 and given[1].literal == "do":
            self._word += 1  # over the variable's name: `do` follows
        elif not listed and len(given) > 1:
            raise self._unread(word)
        else:
            if command.redirections or command.operator not in {";", "\n"}:
                raise self._unread(word)
            self._number, self._word = self._number + 1, 0
        return Loop(word, (), self._body(word), name, tuple(given[2:]) if listed else ())

    def _unread(self, word: RawWord) -> MalformedDocument:
        return self._refuse(
            "shell-compound-command",
            f"`{word.literal}`: this compound command is not read; give the `vllm serve` command "
            "on its own",
            word,
        )
