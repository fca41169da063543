"""Did you mean: the nearest known name, found in bounded time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 80


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Give the known names most like `name`, best first; none if nothing is near.

    Dashes and underscores, and upper and lower case, count as equal.
    """
    if len(name) > _LONGEST:
        return ()
    folded = {_fold(other): other for other in known}
    matches = difflib.get_close_matches(_fold(name), folded, n=count, cutoff=0.7)
    return tuple(folded[match] for match in matches)


def similarity(name: str, other: str) -> float:
    """Say how alike two names are, 0 to 1."""
    return difflib.SequenceMatcher(None, _fold(name), _fold(other)).ratio()


def hint(names: tuple[str, ...]) -> str:
    """Say it in a sentence's tail; empty if there is nothing near."""
    return f"; did you mean {' or '.join(names[:2])}?" if names else ""


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
