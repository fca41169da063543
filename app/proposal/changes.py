"""What an edit changes in the words of a command line, before it is written into a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from app.proposal.proposal import Proposal, Word


@dataclass(slots=True)
class Change:
    """Words to put in place of others (none to delete them), to add, and to put first."""

    replaced: dict[int, list[str]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return bool(self.replaced or self.added or self.first)

    def applied(self, words: Sequence[Word]) -> list[tuple[str, tuple[str, ...]]]:
        """Give the words that come out, each with the variables open in it.

        Added words come last, but before a `--`.
        """
        stop = next((i for i, word in enumerate(words) if word.text == "--"), len(words))
        texts: list[tuple[str, tuple[str, ...]]] = [(text, ()) for text in self.first]
        for i, word in enumerate(words):
            if i == stop:
                texts.extend((text, ()) for text in self.added)
            texts.extend((text, word.unresolved) for text in self.replaced.get(i, [word.text]))
        if stop == len(words):
            texts.extend((text, ()) for text in self.added)
        return texts


class Writer(Protocol):
    """How changes are written into the text of a proposal, where it is no shell text.

    Each method gives the whole edited text, or None where it cannot be written.
    """

    def words(self, proposal: Proposal, change: Change) -> str | None:
        """Write changed words."""

    def set_variable(self, proposal: Proposal, name: str, value: str) -> str | None:
        """Write an environment variable."""

    def unset_variable(self, proposal: Proposal, name: str) -> str | None:
        """Take an environment variable out."""


@runtime_checkable
class KwargsWriter(Writer, Protocol):
    """How changed engine arguments are written into the text that holds them."""

    def kwargs(self, new: Mapping[str, Any]) -> str | None:
        """Give the whole edited text, or None where they cannot be written."""
