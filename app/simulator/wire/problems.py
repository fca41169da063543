"""Body errors as vLLM words them.

Source: `vllm/entrypoints/serve/exception_handling/handlers/validation.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.simulator.errors import MalformedBody
from app.simulator.wire.dialect import Dialect

_MOST_REPORTED = 10
_MOST_INPUT = 200
_MOST_ERROR = 1000
_BRACKETS = re.compile(r"[\[\]{}()]")
# pydantic's names of schema kinds, which are no field of a body.
_SCHEMA_KINDS = frozenset(
    (
        *("function-wrap", "function-after", "function-before", "function-plain", "default"),
        *("json-or-python", "lax-or-strict", "chain", "nullable", "tagged-union", "union", "call"),
        *("arguments", "is-instance", "is-subclass", "callable", "str", "int", "float", "bool"),
        *("bytes", "bytearray", "list", "tuple", "dict", "set", "frozenset", "complex", "none"),
        "nonetype",
    )
)
_PATHS = re.compile(r"(?:/[\w\-]+)+/[\w\-]+\.\w+")


def body_error(errors: Sequence[Mapping[str, Any]], dialect: Dialect) -> MalformedBody:
    """Make one refusal of pydantic's error list, as 0.30 or as older versions word it."""
    label = "error" if len(errors) == 1 else "errors"
    reported = errors[:_MOST_REPORTED] if dialect.summarises_errors else errors
    lines = [f"{len(errors)} validation {label}:"]
    lines += [f"  {_summary(error) if dialect.summarises_errors else error}" for error in reported]
    if len(errors) > len(reported):
        lines.append(f"  ...and {len(errors) - len(reported)} more {label}")
    return MalformedBody(sanitised("\n".join(lines)), dotted(errors[0]["loc"]))


def unsupported_media() -> MalformedBody:
    """Make the refusal of a body that is not declared as JSON."""
    return MalformedBody(
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    )


def dotted(loc: Sequence[str | int]) -> str:
    """Give the path of a field without pydantic's schema kinds."""
    parts = [str(part) for part in loc]
    named = [p for p in parts if not _BRACKETS.search(p) and p.lower() not in _SCHEMA_KINDS]
    return ".".join(named or parts)


def sanitised(text: str) -> str:
    """Hide what looks like a file path, as vLLM does."""
    return _PATHS.sub("<path>", text).strip()


def _summary(error: Mapping[str, Any]) -> str:
    shown = dict(error)
    if "input" in shown:
        shown["input"] = _shortened(shown["input"])
    shown["loc"] = dotted(shown["loc"])
    return _cut(str(shown), _MOST_ERROR)


def _shortened(value: object) -> str:
    if isinstance(value, list | tuple | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return _cut(str(value), _MOST_INPUT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "...[truncated]"
