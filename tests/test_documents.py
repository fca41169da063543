from __future__ import annotations

import gzip
import zlib

import pytest

from app.documents import decode_json, decode_text, decompress
from app.errors import MalformedDocument, PayloadTooLarge, UnsupportedMedia


def test_text_loses_its_byte_order_mark() -> None:
    assert decode_text(b"\xef\xbb\xbfvllm serve m") == "vllm serve m"


def test_bytes_that_are_not_utf8_are_placed() -> None:
    with pytest.raises(MalformedDocument) as caught:
        decode_text(b"vllm serve m\n--seed \xff", what="command.sh")
    (problem,) = caught.value.problems
    assert (problem.code, problem.line, problem.column) == ("not-utf-8", 2, 8)
    assert "command.sh" in caught.value.detail


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [('{"args": [}', 1, 11), ('{\n  "args": tru\n}', 2, 11), ("", 1, 1), ('{"a": 1} x', 1, 10)],
)
def test_broken_json_is_placed(text: str, line: int, column: int) -> None:
    with pytest.raises(MalformedDocument) as caught:
        decode_json(text)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1, "b": 2, "a": 3}', "'a' is given twice"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_python_would_take_or_choke_on_is_refused(text: str, says: str) -> None:
    with pytest.raises(MalformedDocument) as caught:
        decode_json(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (None, b"x" * 100),
        ("identity", b"x" * 100),
        ("GZIP", gzip.compress(b"x" * 100)),
        ("deflate", zlib.compress(b"x" * 100)),
    ],
)
def test_content_encodings_are_undone(encoding: str | None, packed: bytes) -> None:
    assert decompress(packed, encoding, limit=100) == b"x" * 100


def test_a_compression_bomb_stops_at_the_limit() -> None:
    with pytest.raises(PayloadTooLarge):
        decompress(gzip.compress(bytes(10_000_000)), "gzip", limit=1000)


@pytest.mark.parametrize("data", [b"not gzip", gzip.compress(b"x" * 100)[:-9]])
def test_damaged_gzip_is_named(data: bytes) -> None:
    with pytest.raises(MalformedDocument, match="gzip"):
        decompress(data, "gzip", limit=1000)


def test_an_unknown_encoding_is_named() -> None:
    with pytest.raises(UnsupportedMedia, match="'br'"):
        decompress(b"", "br", limit=10)
