"""Changing one key of nested data, leaving the original as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_value(data: Any, path: Sequence[str], value: Any) -> Any:
    """Give the data with `value` at the path, making objects where there are none."""
    if not path:
        return value
    head, *rest = path
    if isinstance(data, list) and head.isdigit() and int(head) < len(data):
        items = list(data)
        items[int(head)] = with_value(items[int(head)], rest, value)
        return items
    members = dict(data) if isinstance(data, Mapping) else {}
    key = key_like(members, head)
    members[key] = with_value(members.get(key), rest, value)
    return members


def without(data: Any, path: Sequence[str]) -> Any:
    """Give the data without the key at the path; unchanged if it has none."""
    head, *rest = path
    if not isinstance(data, Mapping):
        return data
    key = key_like(data, head)
    if key not in data:
        return data
    members = dict(data)
    if rest:
        members[key] = without(members[key], rest)
    else:
        del members[key]
    return members


def key_like(members: Mapping[str, Any], key: str) -> str:
    """Give the key as it is spelt there: with dashes if so written, else as given."""
    return next((k for k in members if str(k).replace("-", "_") == key), key)
