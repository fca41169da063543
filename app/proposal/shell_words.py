"""The words of POSIX shell text: quotes, escapes and expansions, each with its place.

A word that only running the shell could tell (`$(nproc)`) is kept as written and says so.
Source: POSIX.1-2024, XCU 2.2 to 2.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.errors import MalformedDocument, Problem
from app.proposal.positions import LineIndex
from app.proposal.shell_arithmetic import MAX_LENGTH

BLANK: Final = " \t\r"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BRACED: Final = re.compile(
    r"\{([A-Za-z_][A-Za-z0-9_]*)(?:(\[[@*]\])|(:?[-+=?])([^$`'\"\\{}]*))?\}"
)
# Runs of characters that mean nothing else, outside quotes and between double ones.
_ORDINARY: Final = re.compile(r"[^ \t\r\n;|&()<>\\'\"$`]+")
_ORDINARY_IN_DOUBLE: Final = re.compile(r"[^\"\\$`]+")
_MAX_NESTED: Final = 16  # arithmetic in arithmetic
_ANSI_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that stands for itself; `offsets` say where each of its characters is written."""

    text: str
    offsets: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Expansion:
    """Something the shell replaces.

    `name` is the variable, None where no variable alone decides (`$(date)`, `$1`, `${A%b}`).
    `operator` and `word` are those of `${NAME:-word}`; the operator `[@]` gives every element
    of an array. Outside quotes the value is split at blanks. `arithmetic` is what stands in
    `$((…))`, if it can be that.
    """

    raw: str
    quoted: bool
    name: str | None = None
    operator: str | None = None
    word: str = ""
    at: int = field(default=0, compare=False)
    arithmetic: tuple[Literal | Expansion, ...] | None = None


@dataclass(frozen=True, slots=True)
class RawWord:
    """A word before expansion; `start` and `end` are offsets of it with its quotes.

    `assignment` is the variable that the word assigns, `appends` whether with `+=`, and
    `values` are the elements if it assigns an array.
    """

    start: int
    end: int
    parts: tuple[Literal | Expansion, ...]
    assignment: str | None = None
    quoted: bool = False
    values: tuple[RawWord, ...] | None = None
    appends: bool = False

    @property
    def literal(self) -> str | None:
        """The text, if nothing in it needs expansion."""
        texts = [part.text for part in self.parts if isinstance(part, Literal)]
        return "".join(texts) if len(texts) == len(self.parts) else None


class _Parts:
    """Collects the parts of a word."""

    def __init__(self) -> None:
        self.parts: list[Literal | Expansion] = []
        self._text: list[str] = []
        self._offsets: list[int] = []

    def add(self, text: str, at: int) -> None:
        """Add text that is written as it is."""
        self._text.append(text)
        self._offsets.extend(range(at, at + len(text)))

    def add_escaped(self, text: str, at: int) -> None:
        """Add one character that is written as several."""
        self._text.append(text)
        self._offsets.extend([at] * len(text))

    def add_part(self, part: Literal | Expansion) -> None:
        """Add an expansion, or text that is read already."""
        self.flush()
        self.parts.append(part)

    def flush(self, *, always: bool = False) -> None:
        """End the run of text."""
        if self._text or always:
            self.parts.append(Literal("".join(self._text), tuple(self._offsets)))
            self._text, self._offsets = [], []


class Scanner:
    """A position in shell text, and reading words from there."""

    def __init__(self, index: LineIndex) -> None:
        """Begin at the start of the text."""
        self._index = index
        self._text = index.text
        self._at = 0
        self._nested = 0

    def _broken(self, code: str, detail: str, at: int | None = None) -> MalformedDocument:
        line, column = self._index.line_column(self._at if at is None else at)
        problem = Problem(code, detail, line=line, column=column)
        return MalformedDocument("the shell text cannot be read", (problem,))

    def _continues(self, *, only_peek: bool = False) -> bool:
        """Whether a backslash and a line end stand here; steps over them."""
        text, at = self._text, self._at
        if not text.startswith("\\", at):
            return False
        after = at + 1
        while after < len(text) and text[after] in BLANK:
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

    def _word(self) -> RawWord:
        text, size, start = self._text, len(self._text), self._at
        assigns = _ASSIGNMENT.match(text, start)
        if assigns is not None and text.startswith("(", assigns.end()):
            return self._array(assigns)
        collected = _Parts()
        quoted = False
        while self._at < size:
            if (run := _ORDINARY.match(text, self._at)) is not None:
                collected.add(run.group(), self._at)
                self._at = run.end()
                continue
            char = text[self._at]
            if char in " \t\n;|&()" or (char in "<>" and not text.startswith("(", self._at + 1)):
                break
            if char == "\r" and text.startswith("\n", self._at + 1):
                break
            if char == "\\":
                if self._continues():
                    continue
                collected.add_escaped(text[self._at + 1 : self._at + 2], self._at)
                quoted = True
                self._at += 2
            elif char == "'":
                collected.add(*self._single_quoted())
                quoted = True
            elif char == '"' or text.startswith('$"', self._at):
                self._at += char == "$"
                for part in self._double_quoted():
                    collected.add_part(part)
                quoted = True
            elif text.startswith("$'", self._at):
                for part in self._ansi_quoted():
                    collected.add_part(part)
                quoted = True
            elif char in "$`<>":
                at = self._at
                expansion = self._expansion(quoted=False)
                if isinstance(expansion, Expansion):
                    collected.add_part(expansion)
                else:
                    collected.add(expansion, at)
            else:
                collected.add(char, self._at)
                self._at += 1
        collected.flush()
        assignment = None
        if assigns is not None and assigns.end() <= self._at:
            assignment = assigns.group(1)
        parts = tuple(collected.parts) or (Literal(""),)
        appends = assignment is not None and assigns is not None and bool(assigns.group(2))
        return RawWord(start, self._at, parts, assignment, quoted, appends=appends)

    def _array(self, assigns: re.Match[str]) -> RawWord:
        """Read `NAME=(word …)`, over several lines and with comments."""
        start, text = self._at, self._text
        self._at = assigns.end() + 1
        values: list[RawWord] = []
        while not text.startswith(")", self._at):
            if self._at >= len(text):
                raise self._broken("shell-unclosed-array", "this array is never closed", start)
            char = text[self._at]
            if char in BLANK or char == "\n":
                self._at += 1
            elif char == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif self._continues():
                continue
            elif char in ";|&(" or (char in "<>" and not text.startswith("(", self._at + 1)):
                raise self._broken("shell-array", f"{char!r} cannot stand in an array")
            else:
                values.append(self._word())
        self._at += 1
        parts = (Literal(assigns.group()),)
        name, plus = assigns.groups()
        return RawWord(start, self._at, parts, name, values=tuple(values), appends=bool(plus))

    def _single_quoted(self) -> tuple[str, int]:
        """Give the text between single quotes, and where it starts."""
        start = self._at + 1
        end = self._text.find("'", start)
        if end < 0:
            raise self._broken("shell-unclosed-quote", "this single quote is never closed")
        self._at = end + 1
        return self._text[start:end], start

    def _ansi_quoted(self) -> list[Literal | Expansion]:
        start = self._at
        collected = _Parts()
        self._at += 2
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "'":
                self._at += 1
                collected.flush(always=True)
                return collected.parts
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in _ANSI_ESCAPES:
                collected.add_escaped(_ANSI_ESCAPES[self._text[self._at + 1]], self._at)
                self._at += 2
            elif char == "\\":
                raise self._broken("shell-escape", "this escape inside $'…' is not read")
            else:
                collected.add(char, self._at)
                self._at += 1
        raise self._broken("shell-unclosed-quote", "this quote is never closed", start)

    def _double_quoted(self) -> list[Literal | Expansion]:
        text, start = self._text, self._at
        collected = _Parts()
        self._at += 1
        while self._at < len(text):
            if (run := _ORDINARY_IN_DOUBLE.match(text, self._at)) is not None:
                collected.add(run.group(), self._at)
                self._at = run.end()
                continue
            char = text[self._at]
            if char == '"':
                self._at += 1
                collected.flush(always=not collected.parts)
                return collected.parts
            if char == "\\":
                following = text[self._at + 1 : self._at + 2]
                if following in {"\n", "\r"}:
                    self._at += following == "\r"
                elif following and following in '$`"\\':
                    collected.add_escaped(following, self._at)
                else:
                    collected.add(char + following, self._at)
                self._at += 2
            elif char in "$`":
                at = self._at
                expansion = self._expansion(quoted=True)
                if isinstance(expansion, Expansion):
                    collected.add_part(expansion)
                else:
                    collected.add(expansion, at)
            else:
                collected.add(char, self._at)
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
            return Expansion(text[start : self._at], quoted, at=start)
        if text.startswith(("$(", "<(", ">("), start):
            self._at = self._closing(start + 1, "(", ")")
            inner = self._arithmetic(start, self._at) if text.startswith("$((", start) else None
            return Expansion(text[start : self._at], quoted, at=start, arithmetic=inner)
        if braced := _BRACED.match(text, start + 1):
            self._at = braced.end()
            name, every, operator, word = braced.groups()
            raw = text[start : self._at]
            return Expansion(raw, quoted, name, "[@]" if every else operator, word or "", start)
        if text.startswith("${", start):
            self._at = self._closing(start + 1, "{", "}")
            return Expansion(text[start : self._at], quoted, at=start)
        if name := _NAME.match(text, start + 1):
            self._at = name.end()
            return Expansion(text[start : self._at], quoted, name.group(), at=start)
        following = text[start + 1 : start + 2]
        if following and following in "0123456789@*#?$!-":
            self._at += 2
            return Expansion(text[start : self._at], quoted, at=start)
        self._at += 1
        return text[start]

    def _arithmetic(self, start: int, end: int) -> tuple[Literal | Expansion, ...] | None:
        """Read what stands in the `$((…))` between two offsets, as between double quotes.

        None if it ends otherwise, or is longer or deeper than anybody writes.
        """
        text, last = self._text, end - 2
        bounded = end - start <= MAX_LENGTH and self._nested < _MAX_NESTED
        if not bounded or not text.startswith("))", last):
            return None
        collected = _Parts()
        self._at, self._nested = start + 3, self._nested + 1
        try:
            while self._at < last:
                at = self._at
                found = self._expansion(quoted=True) if text[at] in "$`" else text[at]
                if isinstance(found, Expansion):
                    collected.add_part(found)
                elif text.startswith("\\\n", at):
                    self._at += 2
                else:
                    collected.add(found, at)
                    self._at = at + 1
        except MalformedDocument:
            return None
        finally:
            whole, self._at, self._nested = self._at == last, end, self._nested - 1
        collected.flush()
        return tuple(collected.parts) if whole else None

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
