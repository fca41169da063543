"""The words that argparse sees, each with where it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.catalogue import Flag
from app.serve_config.serve_config import Origin
from app.verdict.location import Location


@dataclass(frozen=True, slots=True)
class DottedPart:
    """One `--flag.path value` of those that vLLM collects into one JSON value.

    `argv` are the indices of its words: one (`=` form) or two.
    """

    path: tuple[str, ...]
    argv: tuple[int, ...]
    location: Location
    appends: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """One word after vLLM's own rewriting.

    `argv` are the indices of the words of the proposal it came from: none for what a config
    file gave, several for collected dotted keys. `written` is the spelling before rewriting.
    """

    text: str
    location: Location
    argv: tuple[int, ...] = ()
    unresolved: tuple[str, ...] = ()
    origin: Origin = Origin.ARGV
    written: str = ""
    dotted: tuple[DottedPart, ...] = ()

    @property
    def spelling(self) -> str:
        """What the user wrote."""
        return self.written or self.text


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One place that gives a flag, with the words that argparse hands to it.

    A positional has no `option`. `explicit` marks the `--flag=value` form, whose value is part
    of the option's word; `option_text` is the option string it was taken for. `value` is the
    converted value once it is known.
    """

    flag: Flag
    option: Token | None
    option_text: str | None
    values: tuple[Token, ...]
    explicit: bool = False
    value: Any = None

    @property
    def token(self) -> Token:
        """The option's word; for a positional the value's."""
        return self.option if self.option is not None else self.values[0]

    @property
    def location(self) -> Location:
        """Where the value begins; for a switch, where the option stands."""
        return self.values[0].location if self.values else self.token.location

    @property
    def origin(self) -> Origin:
        """Command line or config file."""
        return self.token.origin
