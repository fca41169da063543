"""Members of objects whose values may be of any type."""

from __future__ import annotations

from typing import Any


def as_list(value: Any) -> list[Any]:
    """Give the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Give the value as a template writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
