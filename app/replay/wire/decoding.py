"""Decoding JSON into typed partial structs, with errors that say where."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from app.errors import InvalidEnvelope, MalformedDocument, Problem, UnusableInput

T = TypeVar("T")

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")


def decode(data: bytes | str, kind: type[T], *, pointer: str = "") -> T:
    """Decode JSON text into `kind`, ignoring unknown members.

    Raises:
        MalformedDocument: it is not JSON.
        InvalidEnvelope: a member has another type; the problem points to it below `pointer`.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _mistyped(error, pointer) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return convert(_decode_leniently(data, error, pointer), kind, pointer=pointer)


def convert(value: Any, kind: type[T], *, pointer: str = "", strict: bool = True) -> T:
    """Turn parsed JSON into `kind`, ignoring unknown members.

    Not `strict`, numbers may be written as strings.

    Raises:
        InvalidEnvelope: a member has another type; the problem points to it below `pointer`.
    """
    try:
        return msgspec.convert(value, type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _mistyped(error, pointer) from None


def _decode_leniently(data: bytes | str, cause: Exception, pointer: str) -> Any:
    """Parse the literals NaN and Infinity too, which Python writes and JSON does not have.

    So the caller can say which number is not one.
    """
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        problem = Problem("malformed-json", error.msg, pointer, error.lineno, error.colno)
    except UnicodeDecodeError as error:
        problem = Problem("not-utf-8", f"byte {error.start}: {error.reason}", pointer)
    except (RecursionError, ValueError):
        # Nested too deeply, or a number of thousands of digits.
        problem = Problem("malformed-json", str(cause), pointer)
    raise MalformedDocument("the replay case is not valid JSON", (problem,))


def _mistyped(error: msgspec.ValidationError, pointer: str) -> UnusableInput:
    match = _PATH.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    steps = (name or index for name, index in _STEP.findall(path))
    where = pointer + "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
    return InvalidEnvelope(f"{where or 'the input'}: {what}", (Problem("wrong-type", what, where),))
