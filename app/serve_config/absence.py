"""What became of a name that this version does not have, in the words of a message."""

from __future__ import annotations

from functools import lru_cache

from packaging.version import Version

from app.catalogue import Catalogue
from app.catalogue.compare import Absence, shipped_history
from app.serve_config.suggest import hint


def tell(absence: Absence | None, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Give a message's tail, and the names to suggest.

    A name that another version has is no misspelling: only what came in its place is suggested.
    """
    if absence is None:
        return hint(names), names
    instead = absence.replacement if absence.removed else None
    return f"; {absence.said}", () if instead is None else (instead,)


def option(catalogue: Catalogue, name: str) -> Absence | None:
    """Tell of an option string of the command line."""
    return _option(name, catalogue.vllm_version)


def argument(catalogue: Catalogue, dest: str) -> Absence | None:
    """Tell of an engine argument."""
    return shipped_history().dest(dest, catalogue.vllm_version)


def key(catalogue: Catalogue, cls: str, name: str) -> Absence | None:
    """Tell of a key of a JSON setting."""
    return shipped_history().key(cls, name, catalogue.vllm_version)


def variable(catalogue: Catalogue, name: str) -> Absence | None:
    """Tell of an environment variable."""
    return shipped_history().variable(name, catalogue.vllm_version)


@lru_cache(maxsize=4096)
def _option(name: str, version: str) -> Absence | None:
    return shipped_history().option(name, version)


@lru_cache(maxsize=256)
def deprecated_since(dest: str) -> str | None:
    """Give the first version that calls a flag deprecated; None if it is the oldest known."""
    catalogues = shipped_history().catalogues
    named = [c for c in catalogues if (flag := c.by_dest.get(dest)) and flag.deprecated]
    if not named or named[0] is catalogues[0]:
        return None
    return named[0].vllm_version


@lru_cache(maxsize=256)
def gone_from(dest: str, version: str) -> Absence | None:
    """Tell of a flag that a later version no longer has; None if every later one has it."""
    history = shipped_history()
    after = [v for v in history.versions if Version(v) > Version(version)]
    return next((gone for v in after if (gone := history.dest(dest, v)) is not None), None)
