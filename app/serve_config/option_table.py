"""Looking option strings up as argparse does: exactly, with `=`, and by prefix.

Source: CPython 3.11 and 3.12 `argparse.ArgumentParser._parse_optional`, `_get_option_tuples`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from app.catalogue import Catalogue, Flag

_NEGATIVE_NUMBER: Final = re.compile(r"^-\d+$|^-\d*\.\d+$")

HELP: Final = Flag(
    dest="help",
    options=("-h", "--help"),
    group="options",
    action="_HelpAction",
    nargs=0,
    default=None,
    required=False,
    takes_value=False,
)


@dataclass(frozen=True, slots=True)
class Match:
    """What one word is: an option of the parser, or an option it does not know (no `flag`).

    `ambiguous` lists the options of which the word is a common beginning. `newer_python` marks
    what only the argparse of newer Pythons takes for that option.
    """

    flag: Flag | None
    option: str
    explicit: str | None = None
    abbreviated: bool = False
    ambiguous: tuple[str, ...] = ()
    newer_python: bool = False


class OptionTable:
    """The option strings of one parser."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.flags: dict[str, Flag] = dict.fromkeys(HELP.options, HELP)
        self.flags.update(catalogue.by_option)
        self._sorted = sorted(self.flags)
        self._order = {option: i for i, option in enumerate(self.flags)}
        self.positional = next(f for f in catalogue.flags if not f.options)
        self._long = tuple(
            (option, option in flag.negative_options)
            for flag in catalogue.flags
            for option in flag.options
            if option.startswith("--")
        )

    def alternatives(self, text: str) -> tuple[str, ...]:
        """Give the long options to look for a misspelt one in; negative ones only for `--no-`."""
        negative = text.startswith(("--no-", "--disable-"))
        return tuple(option for option, negates in self._long if negative or not negates)

    def classify(self, text: str) -> Match | None:
        """Say what a word is; None for a value or positional."""
        if not text.startswith("-"):
            return None
        if text in self.flags:
            return Match(self.flags[text], text)
        if len(text) == 1:
            return None
        name, equals, value = text.partition("=")
        if equals and name in self.flags:
            return Match(self.flags[name], name, value)
        found = self._by_prefix(text)
        if len(found) > 1:
            return Match(None, text, ambiguous=tuple(option for option, _ in found))
        if found:
            ((option, explicit),) = found
            return Match(self.flags[option], option, explicit, abbreviated=True)
        if _NEGATIVE_NUMBER.match(text) or " " in text:
            return None
        if equals and not text.startswith("--"):
            found = [(option, value) for option in self._beginning_with(name)]
            if len(found) == 1:
                option = found[0][0]
                return Match(self.flags[option], option, value, True, newer_python=True)
        return Match(None, text)

    def _by_prefix(self, text: str) -> list[tuple[str, str | None]]:
        if text.startswith("--"):
            prefix, equals, value = text.partition("=")
            return [(o, value if equals else None) for o in self._beginning_with(prefix)]
        short = text[:2]
        found: list[tuple[str, str | None]] = [(o, None) for o in self._beginning_with(text)]
        if short in self.flags and short != text:
            found.append((short, text[2:]))
        return sorted(found, key=lambda pair: self._order[pair[0]])

    def _beginning_with(self, prefix: str) -> list[str]:
        found = []
        for option in self._sorted[bisect_left(self._sorted, prefix) :]:
            if not option.startswith(prefix):
                break
            found.append(option)
        return sorted(found, key=self._order.__getitem__)


@lru_cache(maxsize=32)
def _table(catalogue: ByIdentity) -> OptionTable:
    return OptionTable(catalogue.catalogue)


class ByIdentity:
    """A catalogue as a cache key: equal only to itself, so that nothing large is compared."""

    __slots__ = ("catalogue",)

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue

    def __hash__(self) -> int:
        return id(self.catalogue)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.catalogue is self.catalogue


def option_table(catalogue: Catalogue) -> OptionTable:
    """Give the table of a catalogue; built once for each."""
    return _table(ByIdentity(catalogue))
