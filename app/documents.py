"""Reading documents that somebody sent: sizes, encodings and JSON, with clear errors."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any, Final

from app.errors import MalformedDocument, PayloadTooLarge, Problem, UnsupportedMedia

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
    """Decode JSON strictly: no NaN or Infinity, no duplicate keys, bounded depth.

    Raises:
        MalformedDocument: with line and column where the parser knows them.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        problem = Problem("malformed-json", error.msg, line=error.lineno, column=error.colno)
    except RecursionError:
        problem = Problem("nested-too-deeply", _DEPTH_ADVICE)
    except ValueError as error:  # duplicate keys, constants, numbers of thousands of digits
        problem = Problem("malformed-json", str(error))
    raise MalformedDocument(f"the {what} is not valid JSON", (problem,))


def decompress(data: bytes, encoding: str | None, *, limit: int) -> bytes:
    """Undo a Content-Encoding, never producing more than `limit` bytes.

    Raises:
        PayloadTooLarge: the decompressed size passes the limit.
        MalformedDocument: the bytes are not what the header says.
        UnsupportedMedia: an encoding other than identity, gzip and deflate.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return data
    if name not in {"gzip", "deflate"}:
        raise UnsupportedMedia(f"Content-Encoding {name!r} is not read; use gzip or none")
    stream = zlib.decompressobj(wbits=31 if name == "gzip" else 15)
    try:
        out = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise MalformedDocument(f"the body is not {name} data: {error}") from None
    if len(out) > limit:
        raise PayloadTooLarge(f"the body decompresses to more than {limit} bytes")
    if not stream.eof:
        raise MalformedDocument(f"the {name} data ends early")
    return out


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        double, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {double!r} is given twice; keep one of them")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; leave the value out or use a finite number")
