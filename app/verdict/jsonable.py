"""Answers as strict JSON (RFC 8259), whatever values a proposal gives."""

from __future__ import annotations

import json
from typing import Any


def jsonable(value: Any) -> Any:
    """Give plain data that any JSON writer takes.

    vLLM's own parsers take `NaN` and `Infinity`, which JSON cannot hold: they become strings.
    So does whatever else is no JSON, such as a value that depends on a shell variable.
    """
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return json.loads(json.dumps(value, default=str), parse_constant=str)
    return value
