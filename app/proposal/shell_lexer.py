"""POSIX shell text as simple commands, every word with its place.

Covers what people paste around a server command: quotes, escapes, line continuation, comments,
assignments, lists, pipelines, redirections, here-documents and parameter expansion. A word that
only running the shell could tell (`$(nproc)`) is kept as written and says so; compound commands
(`if`, `for`, subshells) are refused with their place. Source: POSIX.1-2024, XCU chapter 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.errors import MalformedDocument, Problem
from app.proposal.positions import LineIndex

_BLANK: Final = " \t\r"
_OPERATORS: Final = ("&&", "||", ";;", "|&", "&", "|", ";", "(", ")")
_REDIRECTION: Final = re.compile(r"(?:\d*(?:<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)|&>>|&>)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^$`'\"\\{}]*))?\}")
_ANSI_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that stands for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Expansion:
    """Something the shell replaces.

    `name` is the variable, None where no variable alone decides (`$(date)`, `$1`, `${A%b}`).
    `operator` and `word` are those of `${NAME:-word}`. Outside quotes the value is split at
    blanks.
    """

    raw: str
    quoted: bool
    name: str | None = None
    operator: str | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class RawWord:
    """A word before expansion; `start` and `end` are offsets of it with its quotes."""

    start: int
    end: int
    parts: tuple[Literal | Expansion, ...]
    assignment: str | None = None
    quoted: bool = False

    @property
    def literal(self) -> str | None:
        """The text, if nothing in it needs expansion."""
        texts = [part.text for part in self.parts if isinstance(part, Literal)]
        return "".join(texts) if len(texts) == len(self.parts) else None


@dataclass(slots=True)
class Redirection:
    """A redirection; a here-document has its `body`, and whether it is taken as written."""

    operator: str
    target: RawWord
    body: str | None = None

    @property
    def body_is_literal(self) -> bool:
        """Whether the body is not subject to expansion, or has nothing to expand."""
        return self.target.quoted or not re.search(r"[$`\\]", self.body or "")


@dataclass(slots=True)
class SimpleCommand:
    """Words and redirections up to the next operator."""

    words: list[RawWord] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)


def lex(index: LineIndex) -> list[SimpleCommand]:
    """Split shell text into simple commands.

    Raises:
        MalformedDocument: an unclosed quote or here-document, or a compound command.
    """
    return _Lexer(index).run()


class _Lexer:
    def __init__(self, index: LineIndex) -> None:
        self._index = index
        self._text = index.text
        self._at = 0
        self._commands: list[SimpleCommand] = []
        self._command = SimpleCommand()
        self._pending: list[Redirection] = []

    def run(self) -> list[SimpleCommand]:
        text, size = self._text, len(self._text)
        while self._at < size:
            char = text[self._at]
            if char in _BLANK:
                self._at += 1
            elif char == "\n":
                self._at += 1
                self._end_command()
                self._read_here_documents()
            elif char == "#":
                end = text.find("\n", self._at)
                self._at = size if end < 0 else end
            elif self._continues():
                continue
            elif text.startswith(("<(", ">("), self._at):
                self._command.words.append(self._word())
            elif match := _REDIRECTION.match(text, self._at):
                self._redirection(match)
            elif operator := next((o for o in _OPERATORS if text.startswith(o, self._at)), None):
                self._operator(operator)
            else:
                self._command.words.append(self._word())
        self._end_command()
        self._read_here_documents()
        return self._commands

    # structure

    def _end_command(self) -> None:
        if self._command.words or self._command.redirections:
            self._commands.append(self._command)
        self._command = SimpleCommand()

    def _operator(self, operator: str) -> None:
        if operator in {"(", ")", ";;"}:
            raise self._broken(
                "shell-compound-command",
                f"{operator!r}: subshells, functions and case lists are not read; give the "
                "`vllm serve` command on its own",
            )
        self._at += len(operator)
        self._end_command()

    def _redirection(self, match: re.Match[str]) -> None:
        start, operator = self._at, match.group().lstrip("0123456789")
        self._at = match.end()
        while self._at < len(self._text) and (
            self._text[self._at] in _BLANK or self._continues(only_peek=True)
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

    def _continues(self, *, only_peek: bool = False) -> bool:
        """Whether a backslash and a line end stand here; steps over them."""
        text, at = self._text, self._at
        if not text.startswith("\\", at):
            return False
        after = at + 1
        while after < len(text) and text[after] in _BLANK:
            after += 1
        if after < len(text) and text[after] != "\n":
            return False
        if text[at + 1 : after].strip("\r"):
            raise self._broken(
                "shell-broken-continuation",
                "blanks after the backslash: it does not continue the line, and the shell ends "
                "the command here; delete the blanks",
            )
        if not only_peek:
            self._at = after + 1
        return True

    def _broken(self, code: str, detail: str, at: int | None = None) -> MalformedDocument:
        line, column = self._index.line_column(self._at if at is None else at)
        problem = Problem(code, detail, line=line, column=column)
        return MalformedDocument("the shell text cannot be read", (problem,))

    # words

    def _word(self) -> RawWord:
        text, size, start = self._text, len(self._text), self._at
        parts: list[Literal | Expansion] = []
        plain: list[str] = []
        quoted = False

        def flush() -> None:
            if plain:
                parts.append(Literal("".join(plain)))
                plain.clear()

        while self._at < size:
            char = text[self._at]
            if char in " \t\n;|&()" or (char in "<>" and not text.startswith("(", self._at + 1)):
                break
            if char == "\r" and text.startswith("\n", self._at + 1):
                break
            if char == "\\":
                if self._continues():
                    continue
                plain.append(text[self._at + 1 : self._at + 2])
                quoted = True
                self._at += 2
            elif char == "'":
                plain.append(self._single_quoted())
                quoted = True
            elif char == '"' or text.startswith('$"', self._at):
                self._at += char == "$"
                flush()
                parts.extend(self._double_quoted())
                quoted = True
            elif text.startswith("$'", self._at):
                plain.append(self._ansi_quoted())
                quoted = True
            elif char in "$`<>":
                expansion = self._expansion(quoted=False)
                if isinstance(expansion, Expansion):
                    flush()
                    parts.append(expansion)
                else:
                    plain.append(expansion)
            else:
                plain.append(char)
                self._at += 1
        flush()
        name = _NAME.match(text, start)
        assignment = None
        if name and text.startswith("=", name.end()) and name.end() < self._at:
            assignment = name.group()
        return RawWord(start, self._at, tuple(parts) or (Literal(""),), assignment, quoted)

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise self._broken("shell-unclosed-quote", "this single quote is never closed")
        value = self._text[self._at + 1 : end]
        self._at = end + 1
        return value

    def _ansi_quoted(self) -> str:
        start = self._at
        out: list[str] = []
        self._at += 2
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "'":
                self._at += 1
                return "".join(out)
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in _ANSI_ESCAPES:
                out.append(_ANSI_ESCAPES[self._text[self._at + 1]])
                self._at += 2
            elif char == "\\":
                raise self._broken("shell-escape", "this escape inside $'…' is not read")
            else:
                out.append(char)
                self._at += 1
        raise self._broken("shell-unclosed-quote", "this quote is never closed", start)

    def _double_quoted(self) -> list[Literal | Expansion]:
        text, start = self._text, self._at
        parts: list[Literal | Expansion] = []
        plain: list[str] = []
        self._at += 1
        while self._at < len(text):
            char = text[self._at]
            if char == '"':
                self._at += 1
                if plain or not parts:
                    parts.append(Literal("".join(plain)))
                return parts
            if char == "\\":
                following = text[self._at + 1 : self._at + 2]
                if following not in {"\n", "\r"}:
                    plain.append(following if following in '$`"\\' else char + following)
                elif following == "\r":
                    self._at += 1
                self._at += 2
            elif char in "$`":
                expansion = self._expansion(quoted=True)
                if isinstance(expansion, Expansion):
                    if plain:
                        parts.append(Literal("".join(plain)))
                        plain = []
                    parts.append(expansion)
                else:
                    plain.append(expansion)
            else:
                plain.append(char)
                self._at += 1
        raise self._broken("shell-unclosed-quote", "this double quote is never closed", start)

    def _expansion(self, *, quoted: bool) -> Expansion | str:
        """Read what begins with `$`, a backquote or a process substitution."""
        text, start = self._text, self._at
        if text.startswith("`", start):
            end = text.find("`", start + 1)
            if end < 0:
                raise self._broken("shell-unclosed-quote", "this backquote is never closed")
            self._at = end + 1
            return Expansion(text[start : self._at], quoted)
        if text.startswith(("$(", "<(", ">("), start):
            self._at = self._closing(start + 1, "(", ")")
            return Expansion(text[start : self._at], quoted)
        if braced := _BRACED.match(text, start + 1):
            self._at = braced.end()
            name, operator, word = braced.groups()
            return Expansion(text[start : self._at], quoted, name, operator, word or "")
        if text.startswith("${", start):
            self._at = self._closing(start + 1, "{", "}")
            return Expansion(text[start : self._at], quoted)
        if name := _NAME.match(text, start + 1):
            self._at = name.end()
            return Expansion(text[start : self._at], quoted, name.group())
        following = text[start + 1 : start + 2]
        if following and following in "0123456789@*#?$!-":
            self._at += 2
            return Expansion(text[start : self._at], quoted)
        self._at += 1
        return text[start]

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """Give the offset after the bracket that closes the one at `start`."""
        depth, at = 0, start
        skip: dict[str, Callable[[int], int]] = {
            "\\": lambda i: i + 2,
            "'": lambda i: self._text.find("'", i + 1) + 1 or len(self._text),
        }
        while at < len(self._text):
            char = self._text[at]
            if char in skip:
                at = skip[char](at)
                continue
            depth += (char == opening) - (char == closing)
            at += 1
            if depth == 0:
                return at
        raise self._broken(
            "shell-unclosed-substitution", f"this {opening!r} is never closed", start
        )
