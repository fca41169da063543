"""Did you mean: the nearest known name, found in bounded time."""

from __future__ import annotations

import difflib
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final

_LONGEST: Final = 80
_COMPARED: Final = 12
_CUTOFF: Final = 0.7


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Give the known names most like `name`, best first; none if nothing is near.

    Dashes and underscores, and upper and lower case, count as equal.
    """
    return _nearest(name, tuple(known), count) if len(name) <= _LONGEST else ()


@lru_cache(maxsize=64)  # a verdict with a correction asks for the same word several times
def _nearest(name: str, known: tuple[str, ...], count: int) -> tuple[str, ...]:
    asked = _fold(name)
    pairs = _pairs(asked)
    names = _known(known)
    # Names that are alike have most pairs of letters in common; comparing letters in order is
    # slow, so only those that have the most are compared so.
    shared = Counter(chain.from_iterable(names.having.get(pair, ()) for pair in pairs))
    likely = heapq.nlargest(
        _COMPARED, ((2 * n / (len(pairs) + names.sizes[i]), i) for i, n in shared.items())
    )
    matcher = difflib.SequenceMatcher(None, "", asked)
    rated = []
    for _, i in likely:
        matcher.set_seq1(names.folded[i])
        if matcher.real_quick_ratio() >= _CUTOFF and matcher.quick_ratio() >= _CUTOFF:
            rated.append((matcher.ratio(), -i, names.names[i]))
    best = heapq.nlargest(count, (entry for entry in rated if entry[0] >= _CUTOFF))
    return tuple(other for _, _, other in best)


def similarity(name: str, other: str) -> float:
    """Say how alike two names are, 0 to 1."""
    return _ratio(_fold(name), _fold(other))


def hint(names: tuple[str, ...]) -> str:
    """Say it in a sentence's tail; empty if there is nothing near."""
    return f"; did you mean {' or '.join(names[:2])}?" if names else ""


@dataclass(frozen=True, slots=True)
class _Known:
    """Known names, folded, with how many pairs of letters each has, and who has which pair."""

    names: tuple[str, ...]
    folded: tuple[str, ...]
    sizes: tuple[int, ...]
    having: Mapping[str, Sequence[int]]


@lru_cache(maxsize=512)
def _known(names: tuple[str, ...]) -> _Known:
    """Index the names; of names that fold alike, the last counts."""
    folded = {_fold(name): name for name in names}
    having: dict[str, list[int]] = defaultdict(list)
    sizes = []
    for i, name in enumerate(folded):
        pairs = _pairs(name)
        sizes.append(len(pairs))
        for pair in pairs:
            having[pair].append(i)
    return _Known(tuple(folded.values()), tuple(folded), tuple(sizes), dict(having))


def _pairs(name: str) -> frozenset[str]:
    return frozenset(name[i : i + 2] for i in range(len(name) - 1)) or frozenset({name})


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, name).ratio()


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
