"""Did you mean: the nearest known name, found in bounded time."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_LONGEST: Final = 80
_COMPARED: Final = 12
_CUTOFF: Final = 0.7


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Give the known names most like `name`, best first; none if nothing is near.

    Dashes and underscores, and upper and lower case, count as equal.
    """
    if len(name) > _LONGEST:
        return ()
    asked = _fold(name)
    pairs = _pairs(asked)
    # Names that are alike have most pairs of letters in common; comparing letters in order is
    # slow, so only those that have the most are compared so.
    likely = [
        (2 * len(pairs & other_pairs) / (len(pairs) + len(other_pairs) or 1), i, other)
        for i, (other, other_pairs) in enumerate(_known(tuple(known)).items())
    ]
    likely = heapq.nlargest(_COMPARED, likely)
    rated = [(_ratio(asked, _fold(other)), -i, other) for shared, i, other in likely if shared > 0]
    best = heapq.nlargest(count, (entry for entry in rated if entry[0] >= _CUTOFF))
    return tuple(other for _, _, other in best)


def similarity(name: str, other: str) -> float:
    """Say how alike two names are, 0 to 1."""
    return _ratio(_fold(name), _fold(other))


def hint(names: tuple[str, ...]) -> str:
    """Say it in a sentence's tail; empty if there is nothing near."""
    return f"; did you mean {' or '.join(names[:2])}?" if names else ""


@lru_cache(maxsize=512)
def _known(names: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Give each name with its pairs of letters; of names that fold alike, the last."""
    folded = {_fold(name): name for name in names}
    return {name: _pairs(folded_name) for folded_name, name in folded.items()}


def _pairs(name: str) -> frozenset[str]:
    return frozenset(name[i : i + 2] for i in range(len(name) - 1)) or frozenset({name})


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, name).ratio()


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
