"""Catalogue files: JSON that is small and still shows one fact a line in a diff."""

from __future__ import annotations

import json
from typing import Any

_DEPTH = {
    "config_classes": 3,  # a line for each field
    "env_vars": 1,
    "flags": 1,
    "model_abilities": 1,
    "model_configs": 1,
    "model_facts": 1,
    "model_pooling": 1,
    "not_captured": 1,
    "registries": 1,
    "replay": 2,
    "requests": 2,
    "runner": 2,
}
_DEPTH_BELOW = {"attention_backend_matrix": 1}


def dump(catalogue: dict[str, Any]) -> str:
    """Give the text of a catalogue file: sections sorted by name, a line a fact."""
    sections = (
        f"{_compact(name)}:{_lines(catalogue[name], _DEPTH.get(name, 0))}"
        for name in sorted(catalogue)
    )
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _lines(value: Any, depth: int) -> str:
    """Break the outer `depth` levels of objects and lists into a line each."""
    if depth == 0 or not value:
        return _compact(value)
    if isinstance(value, dict):
        items = (
            f"{_compact(key)}:{_lines(item, depth - 1 + _DEPTH_BELOW.get(key, 0))}"
            for key, item in value.items()
        )
        return "{\n" + ",\n".join(items) + "\n}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(_lines(item, depth - 1) for item in value) + "\n]"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
