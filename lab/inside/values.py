"""What vLLM's parser made of a command line, as plain data.

Numbers that JSON has not, members, sets and configuration objects are objects with one key that
begins with `$`. Of a namespace only what differs from the parser's defaults is given.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import math
from pathlib import Path
from typing import Any

# Set by vLLM's subcommands, no option of `vllm serve`.
_OTHER = frozenset({"subparser", "dispatch_function", "config", "help"})


def plain(value: Any) -> Any:
    """Give a value as JSON can hold it."""
    if isinstance(value, enum.Enum):
        return {"$member": value.name, "value": plain(value.value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
        return {"$class": type(value).__name__, **fields}
    return {"$other": type(value).__name__}


def namespace_values(namespace: Any) -> dict[str, Any]:
    """Give every destination with its value."""
    return {dest: plain(value) for dest, value in vars(namespace).items() if dest not in _OTHER}


def serve_defaults(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Give what `vllm serve` without arguments is parsed to."""
    return namespace_values(parser.parse_args(["serve"]))


def changes(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Keep what differs from the defaults; of configuration objects, the fields that do."""
    changed: dict[str, Any] = {}
    for dest, value in values.items():
        default = defaults.get(dest)
        if _same(value, default):
            continue
        if isinstance(value, dict) and "$class" in value:
            base = default if isinstance(default, dict) and "$class" in default else {}
            fields = {k: v for k, v in value.items() if k not in base or not _same(v, base[k])}
            value = {"$class": value["$class"], **fields, "$whole": not base}
        changed[dest] = value
    return changed


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)
