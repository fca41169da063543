"""The fix of a value that is none of those there are."""

from __future__ import annotations

from collections.abc import Iterable

from app.serve_config.suggest import nearest
from app.verdict.fix import Fix, RemoveFlag, SetFlag


def nearest_or_none(dest: str, value: str, known: Iterable[str]) -> Fix:
    """Set `dest` to the known value most like `value`; drop the option where none is near."""
    near = nearest(value, known, 1)
    if near:
        return Fix(f"use {near[0]}", (SetFlag(dest, near[0]),), safe=False)
    option = f"--{dest.replace('_', '-')}"
    return Fix(f"drop {option}", (RemoveFlag(dest),), safe=False)
