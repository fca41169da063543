"""JSON lines in, JSON lines out, in order; a line that cannot be used is answered too.

The command line and `POST /replay/batch` share this. Memory is bounded by the longest line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from app.documents import encode_json
from app.errors import AdmissionError, PayloadTooLarge

# Of a line that is not JSON, or is too long, the id is still read where it stands first.
_HEAD: Final = 4096
_FIRST_ID: Final = re.compile(
    rb'\s*\{\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?)\s*[,}]'
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input; of one that is too long, only its beginning is kept."""

    number: int
    data: bytes
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What one line came to: its JSON lines, each ended by a newline, and its exit code."""

    text: bytes
    exit_code: int


class LineCutter:
    """Cuts bytes that come in pieces into lines of at most `limit` bytes.

    `number` is that of the line it is at, from 1.
    """

    def __init__(self, limit: int) -> None:
        """Begin at line 1."""
        self._limit = limit
        self.number = 1
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Line]:
        """Give the lines that end in `data`; blank ones only count."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data[start:end])
            yield from self._cut()
            start = end + 1
        self._take(data[start:])

    def finish(self) -> Iterator[Line]:
        """Give the last line, where it does not end in a newline."""
        yield from self._cut()

    def _take(self, part: bytes) -> None:
        if not part:
            return
        if self._size <= self._limit:
            self._parts.append(part)
        self._size += len(part)

    def _cut(self) -> Iterator[Line]:
        too_long = self._size > self._limit
        data = b"".join(self._parts)
        line = Line(self.number, data[:_HEAD] if too_long else data, too_long)
        self._parts.clear()
        self._size = 0
        self.number += 1
        if data.strip():
            yield line


class Batch:
    """Answers lines with `handle`, which takes the bytes of one."""

    def __init__(
        self,
        handle: Callable[[Line], Answer],
        *,
        limit: int,
        unusable: int = 2,
        crashed: Callable[[int, Exception], None] | None = None,
    ) -> None:
        """Remember what to do with a line.

        Args:
            handle: gives the answer, or raises `AdmissionError`.
            limit: of a line's length, for the message.
            unusable: exit code of a line that `handle` refuses.
            crashed: is told the line number of an unexpected error, which is answered as an
                internal one.
        """
        self._handle = handle
        self._limit = limit
        self._unusable = unusable
        self._crashed = crashed

    def answer(self, line: Line) -> Answer:
        """Handle one line.

        A line that cannot be used gives `{"id", "line", "error": problem}`.
        """
        try:
            if line.too_long:
                raise PayloadTooLarge(f"the line is longer than {self._limit} bytes")
            return self._handle(line)
        except AdmissionError as error:
            return self._failure(line, error)
        except Exception as error:
            if self._crashed is None:
                raise
            self._crashed(line.number, error)
            detail = "an internal error; the log has the details under this line's number"
            return self._failure(line, AdmissionError(detail))

    def _failure(self, line: Line, error: AdmissionError) -> Answer:
        return Answer(failure(line.number, error, identity_of(line)), self._unusable)


def lines_of(pieces: Iterable[bytes], limit: int) -> Iterator[Line]:
    """Cut what an iterable of pieces gives into lines."""
    cutter = LineCutter(limit)
    for piece in pieces:
        yield from cutter.feed(piece)
    yield from cutter.finish()


def failure(number: int, error: AdmissionError, identity: Any = None) -> bytes:
    """Write the answer to an input, here its line number, that could not be used."""
    body: dict[str, Any] = {"line": number, "error": error.problem_json()}
    if identity is not None:
        body = {"id": identity, **body}
    return encode_json(body) + b"\n"


def identity_of(line: Line) -> Any:
    """Give the `id` of a line that may be anything, or None."""
    if not line.too_long:
        try:
            document = json.loads(line.data, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            pass
        else:
            return _writable(document.get("id")) if isinstance(document, dict) else None
    found = _FIRST_ID.match(line.data[:_HEAD])
    try:
        return _writable(json.loads(found[1])) if found else None
    except ValueError:
        return None


def _writable(value: Any) -> Any:
    """Give a value back, or None where JSON cannot hold it, as a number of 1e999."""
    try:
        encode_json(value)
    except (ValueError, RecursionError):
        return None
    return value
