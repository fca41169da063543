"""The words of a command on their way to a program, and where each is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from app.proposal.positions import LineIndex
from app.proposal.proposal import Variable, Word
from app.verdict.location import Location


@dataclass(frozen=True, slots=True)
class Piece:
    """A word, and its text as something that can be read (a script in it) and edited.

    `quoted` tells whether any of it stands in quotes, so that it is no shell keyword.
    """

    word: Word
    nested: Callable[[], LineIndex] = field(compare=False)
    quoted: bool = False

    @property
    def text(self) -> str:
        """The text of the word."""
        return self.word.text

    @property
    def literal(self) -> str:
        """The text if all of it is known, else nothing."""
        return "" if self.word.unresolved else self.word.text


def numbered(pieces: Iterable[Piece]) -> tuple[Word, ...]:
    """Give the words as the arguments of the server, counted from 0."""
    return tuple(_numbered(piece.word, i) for i, piece in enumerate(pieces))


def _numbered(word: Word, number: int) -> Word:
    # Spelt out: `dataclasses.replace` takes several times as long, and this is for every word.
    place = word.location
    location = Location(
        source=place.source,
        argv_index=number,
        pointer=place.pointer,
        line=place.line,
        column=place.column,
        end_line=place.end_line,
        end_column=place.end_column,
        text=place.text,
    )
    return Word(word.text, location, word.unresolved)


def variable_of(piece: Piece) -> Variable | None:
    """Give the variable that a word `NAME=VALUE` sets."""
    name, equals, value = piece.text.partition("=")
    if not equals or not name.isidentifier() or not name.isascii():
        return None
    location = replace(piece.word.location, argv_index=None, variable=name)
    return Variable(name, value, location, piece.word.unresolved)
