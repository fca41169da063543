"""Python values as JSON facts, without anything of the machine that ran the extractor."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any


def as_fact(value: Any) -> Any:
    """Give a JSON value.

    What JSON has no form for becomes an object with one key that starts with `$`: `$dataclass`
    (an instance with the class's own defaults), `$class`, `$enum` with `name` (of a member that is
    neither number nor text), `$suppress` (argparse leaves the attribute out) and `$object`. A path
    below the home directory starts with `~`.
    """
    if value is argparse.SUPPRESS:
        return {"$suppress": True}
    if isinstance(value, enum.Enum) and isinstance(value, int | str):
        return value.value
    if isinstance(value, enum.Enum):
        return {"$enum": type(value).__name__, "name": value.name}
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return portable(value)
    if isinstance(value, type):
        return {"$class": f"{value.__module__}.{value.__qualname__}"}
    if dataclasses.is_dataclass(value):
        return {"$dataclass": type(value).__name__}
    if isinstance(value, Mapping):
        return {str(key): as_fact(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((as_fact(item) for item in value), key=str)
    if isinstance(value, Sequence):
        return [as_fact(item) for item in value]
    return {"$object": type(value).__name__}


def portable(text: str) -> str:
    """Replace the home directory of the extracting user."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text
