"""What a rule needs a tokenizer for: which texts, and how many tokens they have.

The gate has no tokenizer, and the backend's is the one that counts. So a rule says which texts
it must have counted before it can be sure; whoever runs the rules asks and judges again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a text becomes without special tokens: how many, and the first one's id."""

    count: int
    first: int | None


Counts: TypeAlias = Mapping[str, Tokens | None]
"""Tokens by text; None where they could not be counted, no entry where nobody asked."""

NOTHING_COUNTED: Final[Counts] = MappingProxyType({})


class TokenCounter(Protocol):
    """Counts the tokens of texts."""

    async def count(self, texts: Sequence[str], model: str | None) -> Counts:
        """Give an entry for each text, as the tokenizer of `model` (None: the server's) has it."""
