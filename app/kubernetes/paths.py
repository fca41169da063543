"""Values at paths of decoded data, and data with one of them changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.kubernetes.manifest import Path


def value_at(data: Any, path: Path) -> Any:
    """Give the value at a path; None where there is none."""
    for step in path:
        if isinstance(step, int):
            data = data[step] if isinstance(data, list) and step < len(data) else None
        else:
            data = data.get(step) if isinstance(data, Mapping) else None
    return data


def with_value_at(data: Any, path: Path, value: Any) -> Any:
    """Give the data with a value at the path; only what is on the way is copied."""
    if not path:
        return value
    step, *rest = path
    if isinstance(step, int):
        items = list(data)
        items[step] = with_value_at(items[step], tuple(rest), value)
        return items
    members = dict(data) if isinstance(data, Mapping) else {}
    members[step] = with_value_at(members.get(step), tuple(rest), value)
    return members


def without_at(data: Any, path: Path) -> Any:
    """Give the data without the key at the path."""
    *holder, key = path
    members = value_at(data, tuple(holder))
    rest = {k: v for k, v in members.items() if k != key} if isinstance(members, Mapping) else {}
    return with_value_at(data, tuple(holder), rest)
