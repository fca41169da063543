"""Reading documents that somebody sent: encodings and JSON, with clear errors."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Final

from app.errors import MalformedDocument, Problem

_MOST_DIGITS: Final = 4000  # below the length at which Python itself refuses
_DEPTH_ADVICE: Final = "the document is nested too deeply; nothing vLLM takes needs that"


def decode_text(data: bytes, *, what: str = "body") -> str:
    """Decode UTF-8, with or without a byte-order mark.

    Raises:
        MalformedDocument: it is not UTF-8; the error gives line and column of the byte.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = data.count(b"\n", 0, error.start)
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        detail = f"byte 0x{data[error.start]:02x} is not valid UTF-8; send the text as UTF-8"
        problem = Problem("not-utf-8", detail, line=start + 1, column=column)
        raise MalformedDocument(f"the {what} is not UTF-8 text", (problem,)) from None


def decode_json(text: str, *, what: str = "body") -> Any:
    """Decode JSON strictly: finite numbers, no duplicate keys, bounded depth.

    Raises:
        MalformedDocument: with line and column where the parser knows them.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        problem = Problem("malformed-json", error.msg, line=error.lineno, column=error.colno)
    except RecursionError:
        problem = Problem("nested-too-deeply", _DEPTH_ADVICE)
    except ValueError as error:  # duplicate keys, constants, numbers out of range
        problem = Problem("malformed-json", str(error))
    raise MalformedDocument(f"the {what} is not valid JSON", (problem,))


def encode_json(value: Any) -> bytes:
    """Write JSON on one line, in ASCII: lone surrogates that JSON can name stay valid.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        double, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {double!r} is given twice; keep one of them")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; leave the value out or use a finite number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is more than a 64-bit float can hold")
    return number


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is longer than anything vLLM takes")
    return int(digits)
