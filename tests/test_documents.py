from __future__ import annotations

import json

import pytest

from app.documents import decode_json, decode_text, encode_json
from app.errors import MalformedDocument


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
        ('{"a": ' + "9" * 5000 + "}", "5000 digits is longer than anything"),
        ('{"a": 1e999}', "1e999 is more than a 64-bit float"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_python_would_take_or_choke_on_is_refused(text: str, says: str) -> None:
    with pytest.raises(MalformedDocument) as caught:
        decode_json(text)
    assert says in str(caught.value)


def test_json_is_written_in_ascii_so_that_lone_surrogates_stay_valid() -> None:
    value = {"id": "\ud800 é\n"}
    assert json.loads(encode_json(value).decode("ascii")) == value
    with pytest.raises(ValueError, match="JSON"):
        encode_json(float("nan"))
