"""POSIX shell text as simple commands, every word with its place.

Covers what people paste around a server command: quotes, escapes, line continuation, comments,
assignments, arrays, lists, pipelines, redirections, here-documents and parameter expansion.
Reserved words (`if`, `for`) are words here, for `shell_syntax` to put together; subshells and
functions are refused with their place. Source: POSIX.1-2024, XCU chapter 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from app.proposal.positions import LineIndex
from app.proposal.shell_words import BLANK, Literal, RawWord, Scanner

_OPERATORS: Final = ("&&", "||", ";;", "|&", "&", "|", ";", "(", ")")
# After these a command begins, and with it another reserved word may.
BEFORE_COMMAND: Final = frozenset({"if", "then", "else", "elif", "while", "until", "do", "{", "!"})
_MOST_RESERVED: Final = 20  # of those that begin one line
_REDIRECTION: Final = re.compile(r"(?:\d*(?:<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)|&>>|&>)")


@dataclass(slots=True)
class Redirection:
    """A redirection; a here-document has its `body`, and whether it is taken as written."""

    operator: str
    target: RawWord
    body: str | None = None
    body_at: int = 0

    @property
    def body_is_literal(self) -> bool:
        """Whether the body is not subject to expansion, or has nothing to expand."""
        return self.target.quoted or not re.search(r"[$`\\]", self.body or "")


@dataclass(slots=True)
class SimpleCommand:
    """Words and redirections up to the next operator, and that: a newline, or none at the end."""

    words: list[RawWord] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    operator: str = ""


def lex(index: LineIndex) -> list[SimpleCommand]:
    """Split shell text into simple commands.

    Raises:
        MalformedDocument: an unclosed quote or here-document, a subshell or a function.
    """
    return _Lexer(index).run()


class _Lexer(Scanner):
    def __init__(self, index: LineIndex) -> None:
        super().__init__(index)
        self._commands: list[SimpleCommand] = []
        self._command = SimpleCommand()
        self._pending: list[Redirection] = []
        self._in_test = False  # within `[[ … ]]`, where operators are words

    def run(self) -> list[SimpleCommand]:
        text, size = self._text, len(self._text)
        while self._at < size:
            char = text[self._at]
            if char in BLANK:
                self._at += 1
            elif char == "\n":
                self._at += 1
                self._end_command("\n")
                self._read_here_documents()
            elif char == "#":
                end = text.find("\n", self._at)
                self._at = size if end < 0 else end
            elif self._continues():
                continue
            elif self._in_test:
                self._word_of_test()
            elif text.startswith(("<(", ">("), self._at):
                self._command.words.append(self._word())
            elif match := _REDIRECTION.match(text, self._at):
                self._redirection(match)
            elif operator := next((o for o in _OPERATORS if text.startswith(o, self._at)), None):
                self._operator(operator)
            else:
                self._command.words.append(self._word())
                self._in_test = self._begins_test()
        self._end_command("")
        self._read_here_documents()
        return self._commands

    # structure

    def _end_command(self, operator: str) -> None:
        self._in_test = False
        if self._command.words or self._command.redirections:
            self._command.operator = operator
            self._commands.append(self._command)
        self._command = SimpleCommand()

    def _begins_test(self) -> bool:
        """Whether the last word is a `[[` where a command begins."""
        words = self._command.words
        if len(words) > _MOST_RESERVED or words[-1].quoted or words[-1].literal != "[[":
            return False
        return all(w.literal in BEFORE_COMMAND and not w.quoted for w in words[:-1])

    def _word_of_test(self) -> None:
        text, at = self._text, self._at
        operator = next((o for o in (*_OPERATORS, "<", ">") if text.startswith(o, at)), None)
        if operator in {";", ";;", "&"}:
            self._operator(operator)
        elif operator is not None and not text.startswith(("<(", ">("), at):
            self._at += len(operator)
            literal = Literal(operator, tuple(range(at, self._at)))
            self._command.words.append(RawWord(at, self._at, (literal,)))
        else:
            word = self._word()
            self._command.words.append(word)
            self._in_test = word.quoted or word.literal != "]]"

    def _operator(self, operator: str) -> None:
        if operator in {"(", ")", ";;"}:
            raise self._broken(
                "shell-compound-command",
                f"{operator!r}: subshells, functions and case lists are not read; give the "
                "`vllm serve` command on its own",
            )
        self._at += len(operator)
        self._end_command(operator)

    def _redirection(self, match: re.Match[str]) -> None:
        start, operator = self._at, match.group().lstrip("0123456789")
        self._at = match.end()
        while self._at < len(self._text) and (
            self._text[self._at] in BLANK or self._continues(only_peek=True)
        ):
            if not self._continues():
                self._at += 1
        if self._at >= len(self._text) or self._text[self._at] in "\n;|&<>()":
            raise self._broken(
                "shell-redirection", f"{match.group()!r} redirects to nothing", start
            )
        redirection = Redirection(operator, self._word())
        self._command.redirections.append(redirection)
        if operator in {"<<", "<<-"}:
            self._pending.append(redirection)

    def _read_here_documents(self) -> None:
        for redirection in self._pending:
            raw = redirection.target
            delimiter = raw.literal
            if delimiter is None:
                raise self._broken(
                    "shell-here-document", "the delimiter contains a variable", raw.start
                )
            lines: list[str] = []
            redirection.body_at = self._at
            while True:
                if self._at >= len(self._text):
                    raise self._broken(
                        "shell-here-document",
                        f"the here-document is not ended by a line {delimiter!r}",
                        raw.start,
                    )
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end].removesuffix("\r")
                self._at = end + 1
                if redirection.operator == "<<-":
                    line = line.lstrip("\t")
                if line == delimiter:
                    break
                lines.append(line + "\n")
            redirection.body = "".join(lines)
        self._pending = []
