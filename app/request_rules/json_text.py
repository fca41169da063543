"""Finding members in JSON text, so that one can be changed and every other byte kept.

Only text that has been decoded before comes here: the scan trusts it to be valid, and answers
None where it turns out not to be what it seemed (another encoding than UTF-8, say).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\[\]{}\"]+")
_TO_STRUCTURE = re.compile(rb'[^"\[\]{}]*')
# What a scan may cost: about a tenth of a second.
_MOST_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Where an object's members stand in its text, as byte offsets.

    Attributes:
        start: of the opening brace.
        members: start and end of each value; of a repeated key the last, which is the one
            that Python's decoder takes.
        last_end: end of the last value; None in an empty object.
    """

    start: int
    members: Mapping[str, tuple[int, int]]
    last_end: int | None

    def with_member(self, text: bytes, name: str, value: bytes) -> bytes:
        """Give the text with `name` set to `value`: replaced where it stands, or added last."""
        start, end, before = self.place_of(name)
        return text[:start] + before + value + text[end:]

    def place_of(self, name: str) -> tuple[int, int, bytes]:
        """Give what a new value of `name` stands for, from where to where, and what before it."""
        if name in self.members:
            return *self.members[name], b""
        key = json.dumps(name).encode() + b": "
        if self.last_end is None:
            return self.start + 1, self.start + 1, key
        return self.last_end, self.last_end, b", " + key


def object_at(text: bytes, start: int = 0) -> JsonObject | None:
    """Find the members of the object that begins at `start`, blanks skipped; None if none does.

    Objects inside it are skipped over; one with very many parts is given up on.
    """
    try:
        return _Scan(text).members_of(start)
    except (_Unexpected, IndexError, ValueError):
        return None


class _Unexpected(Exception):
    """The text is not the JSON it was taken for, or has too many parts."""


class _Scan:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._steps = 0

    def members_of(self, start: int) -> JsonObject:
        at = start = self._after(_SPACE, start)
        members: dict[str, tuple[int, int]] = {}
        last_end: int | None = None
        self._expect(at, b"{")
        at = self._after(_SPACE, at + 1)
        while self._text[at] != _CLOSE:
            if last_end is not None:
                self._expect(at, b",")
                at = self._after(_SPACE, at + 1)
            end = self._after(_STRING, at)
            name = json.loads(self._text[at:end])
            at = self._after(_SPACE, end)
            self._expect(at, b":")
            at = self._after(_SPACE, at + 1)
            last_end = self._value_end(at)
            members[name] = (at, last_end)
            at = self._after(_SPACE, last_end)
        return JsonObject(start, members, last_end)

    def _value_end(self, at: int) -> int:
        first = self._text[at]
        if first == _QUOTE:
            return self._after(_STRING, at)
        if first not in b"[{":
            return self._after(_SCALAR, at)
        depth = 0
        while True:
            at = self._after(_TO_STRUCTURE, at)
            character = self._text[at]
            if character == _QUOTE:
                at = self._after(_STRING, at)
                continue
            depth += 1 if character in b"[{" else -1
            at += 1
            if depth == 0:
                return at

    def _after(self, pattern: re.Pattern[bytes], at: int) -> int:
        self._steps += 1
        match = pattern.match(self._text, at)
        if match is None or self._steps > _MOST_STEPS:
            raise _Unexpected
        return match.end()

    def _expect(self, at: int, character: bytes) -> None:
        if self._text[at : at + 1] != character:
            raise _Unexpected


_QUOTE, _CLOSE = b'"}'
