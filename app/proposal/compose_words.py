"""What Compose itself does to the strings of its file: variables, and words of a command.

Sources: the Compose Specification, interpolation; `compose-go` (`template`), and the splitting of
`mattn/go-shellwords`, which Compose uses for a `command` that is a string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.errors import MalformedDocument, Problem
from app.proposal.pieces import Piece
from app.proposal.positions import LineIndex, NestedText
from app.proposal.proposal import Word
from app.proposal.quoting import quote
from app.verdict.finding import Finding, Severity

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR: Final = re.compile(r":?[-?+]")
_MAX_DEPTH: Final = 16
_ENDS: Final = ";&|<>"


@dataclass(slots=True)
class Interpolated:
    """A string after Compose has put variables in.

    `text` knows where its characters are written. `holes` are the spans whose value is not
    known, with the variable; they hold the text as written.
    """

    text: NestedText
    holes: list[tuple[int, int, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def unresolved(self, start: int, end: int) -> tuple[str, ...]:
        """Give the variables that are not known between two offsets."""
        names = (name for at, to, name in self.holes if at < end and to > start)
        return tuple(dict.fromkeys(names))


def interpolate(scalar: LineIndex, variables: Mapping[str, str] | None) -> Interpolated:
    """Put variables into a string: `$$`, `$NAME`, `${NAME}`, `${NAME:-default}` and the like.

    `variables` are those of the `.env` file, None if it is not known. A variable that is not
    among them may be set where Compose runs: one with a default takes it, another stays open.
    """
    reader = _Interpolation(scalar, variables or {})
    out, offsets = reader.read(scalar.text, 0, 0)
    offsets.append(len(scalar.text))
    text = NestedText(scalar, out, offsets, lambda new: new.replace("$", "$$"))
    return Interpolated(text, reader.holes, reader.findings)


class _Interpolation:
    def __init__(self, scalar: LineIndex, variables: Mapping[str, str]) -> None:
        self._scalar = scalar
        self._variables = variables
        self.holes: list[tuple[int, int, str]] = []
        self.findings: list[Finding] = []

    def read(self, text: str, base: int, length: int, depth: int = 0) -> tuple[str, list[int]]:
        """Give the text that comes out, and where in the scalar its characters are written.

        `base` is where `text` begins in the scalar, `length` how much has come out before it.
        """
        out: list[str] = []
        offsets: list[int] = []
        at = 0
        while at < len(text):
            dollar = text.find("$", at)
            dollar = len(text) if dollar < 0 else dollar
            out.append(text[at:dollar])
            offsets.extend(range(base + at, base + dollar))
            if dollar == len(text):
                break
            end, value = self._variable(text, dollar, base, length + len(offsets), depth)
            out.append(value)
            offsets.extend([base + dollar] * len(value))
            at = end
        return "".join(out), offsets

    def _variable(self, text: str, at: int, base: int, length: int, depth: int) -> tuple[int, str]:
        """Give the end of what begins at a `$`, and what stands in its place."""
        if text.startswith("$$", at):
            return at + 2, "$"
        if name := _NAME.match(text, at + 1):
            return name.end(), self._plain(name.group(), text[at : name.end()], length)
        if not text.startswith("${", at):
            raise self._invalid(base + at)
        end = _closing(text, at)
        name = _NAME.match(text, at + 2)
        if end is None or name is None or depth > _MAX_DEPTH:
            raise self._invalid(base + at)
        raw = text[at : end + 1]
        operator = _OPERATOR.match(text, name.end())
        if operator is None:
            if name.end() != end:
                raise self._invalid(base + at)
            return end + 1, self._plain(name.group(), raw, length)
        value = self._variables.get(name.group())
        given = value is not None and (bool(value) or not operator.group().startswith(":"))
        word_at = operator.end()
        if operator.group()[-1] == "+":
            if not given:
                return end + 1, ""
        elif given:
            return end + 1, value or ""
        elif operator.group()[-1] == "?":
            self.holes.append((length, length + len(raw), name.group()))
            return end + 1, raw
        elif value is None:
            self._say(name.group(), base + at, base + end + 1)
        word, _ = self.read(text[word_at:end], base + word_at, length, depth + 1)
        return end + 1, word

    def _plain(self, name: str, raw: str, length: int) -> str:
        value = self._variables.get(name)
        if value is not None:
            return value
        self.holes.append((length, length + len(raw), name))
        return raw

    def _say(self, name: str, start: int, end: int) -> None:
        self.findings.append(
            Finding(
                rule="compose-variable",
                severity=Severity.INFO,
                message=f"{name} is not given here, so its default was taken",
                location=self._scalar.location(start, end),
            )
        )

    def _invalid(self, at: int) -> MalformedDocument:
        line, column = self._scalar.line_column(at)
        detail = "Compose reads `$` as the start of a variable; write `$$` for the character"
        problem = Problem("compose-interpolation", detail, line=line, column=column)
        return MalformedDocument("the compose file cannot be read", (problem,))


def _closing(text: str, at: int) -> int | None:
    """Give the offset of the brace that closes the `${` at `at`."""
    depth = 0
    while at < len(text):
        if text.startswith("${", at):
            depth += 1
            at += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None


@dataclass(slots=True)
class Split:
    """The words of a string, and where it was cut short."""

    pieces: list[Piece]
    findings: list[Finding]


def split_words(source: Interpolated) -> Split:
    """Split a command that is a string into words, as Compose does without a shell.

    Raises:
        MalformedDocument: a quote is not closed, or there is a bracket outside quotes.
    """
    return _Splitter(source).run()


class _Splitter:
    def __init__(self, source: Interpolated) -> None:
        self._source = source
        self._text = source.text.text
        self._at = 0
        self._chars: list[str] = []
        self._offsets: list[int] = []
        self._start: int | None = None
        self._quoted = False
        self.split = Split([], [])

    def run(self) -> Split:
        text = self._text
        quote_open: tuple[str, int] | None = None
        while self._at < len(text):
            char = text[self._at]
            if char == "\\" and (quote_open is None or quote_open[0] != "'"):
                self._escaped()
                continue
            if quote_open is not None:
                if char == quote_open[0]:
                    quote_open = None
                else:
                    self._add(char, self._at)
            elif char in "'\"":
                quote_open = (char, self._at)
                self._begin()
                self._quoted = True
            elif char in " \t\r\n":
                self._end()
            elif char in "()`":
                self._substitution(char)
            elif char in _ENDS:
                self._cut(char)
                break
            else:
                self._add(char, self._at)
            self._at += 1
        if quote_open is not None:
            raise self._broken("this quote is never closed", quote_open[1])
        self._end()
        return self.split

    def _escaped(self) -> None:
        text, at = self._text, self._at
        if at + 1 >= len(text):
            raise self._broken("nothing follows this backslash", at)
        following = text[at + 1]
        if following == "\n":
            self._warn("compose-line-end-escaped", "the backslash puts the line end into a word")
        self._add({"t": "\t", "n": "\n"}.get(following, following), at)
        self._at += 2

    def _substitution(self, char: str) -> None:
        """Keep `$(…)` and backquoted text as they are: nothing runs them."""
        closing = {"(": ")", "`": "`"}.get(char)
        end = -1 if closing is None else self._text.find(closing, self._at + 1)
        if end < 0 or (char == "(" and self._chars[-1:] != ["$"]):
            raise self._broken(f"Compose does not read {char!r} outside quotes", self._at)
        for at in range(self._at, end + 1):
            self._add(self._text[at], at)
        self._at = end

    def _cut(self, char: str) -> None:
        if char == ">" and self._chars and "".join(self._chars).isdecimal():
            self._chars, self._offsets, self._start = [], [], None
        self._warn("compose-command-cut", f"the command ends here, before {char!r}")

    def _warn(self, rule: str, message: str) -> None:
        place = self._source.text.location(self._at, self._at + 1)
        self.split.findings.append(
            Finding(rule=rule, severity=Severity.WARNING, message=message, location=place)
        )

    def _begin(self) -> None:
        if self._start is None:
            self._start = self._at

    def _add(self, char: str, at: int) -> None:
        self._begin()
        self._chars.append(char)
        self._offsets.append(at)

    def _end(self) -> None:
        start, end = self._start, self._at
        if start is None:
            return
        location = self._source.text.location(start, end)
        text = "".join(self._chars)
        word = Word(text, location, self._source.unresolved(start, end))
        self.split.pieces.append(Piece(word, self._nesting(text, start, end), self._quoted))
        self._chars, self._offsets, self._start, self._quoted = [], [], None, False

    def _nesting(self, text: str, start: int, end: int) -> _Nesting:
        return _Nesting(self._source.text, text, (*self._offsets, end), self._text[start:end])

    def _broken(self, detail: str, at: int) -> MalformedDocument:
        line, column = self._source.text.line_column(at)
        problem = Problem("compose-command", detail, line=line, column=column)
        return MalformedDocument("the compose file cannot be read", (problem,))


class _Nesting:
    """The text of a word as something to read and edit."""

    def __init__(self, index: LineIndex, text: str, offsets: Sequence[int], raw: str) -> None:
        self._index = index
        self._text = text
        self._offsets = offsets
        self._raw = raw

    def __call__(self) -> LineIndex:
        offsets = list(self._offsets)
        if self._raw[:1] in {"'", '"'} and self._raw[-1:] == self._raw[:1]:
            offsets[-1] -= 1  # before the quote
        quote_in = {"'": _in_single, '"': _in_double}.get(self._raw[:1], quote)
        return NestedText(self._index, self._text, offsets, quote_in)


def _in_single(new: str) -> str:
    return new.replace("'", "'\\''")


def _in_double(new: str) -> str:
    return re.sub(r'([\\"])', r"\\\1", new)
