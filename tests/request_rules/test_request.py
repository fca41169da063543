"""Bodies are read as vLLM reads them: Python's json, then pydantic in its lax mode."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from app.request_rules.request import INVOCATIONS, Route, read_request

_INTEGER = TypeAdapter(int | None)
_NUMBER = TypeAdapter(float | None)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["5", "5.0", " 7 ", "0", "-1", "1e3", "1_000", "nan", "true"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(json_values)
def test_numbers_are_read_as_pydantic_reads_them(value: object) -> None:
    request = read_request(Route.COMPLETIONS, json.dumps({"n": value, "min_tokens": 1}).encode())
    assert request is not None
    for adapter, read in ((_INTEGER, request.integer("n")), (_NUMBER, request.number("n"))):
        try:
            expected = adapter.validate_python(json.loads(json.dumps(value)))
        except ValidationError:
            expected = None
        assert repr(read) == repr(expected)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"1",
        b"null",
        b'{"a": 1} x',
        b'{"sampling_params": {}',
        b"\xff\xfe{",
        b"--boundary",
    ],
)
@pytest.mark.parametrize("route", Route)
def test_what_is_no_request_is_left_to_vllm(route: Route, body: bytes) -> None:
    assert read_request(route, body) is None


def test_a_number_that_python_does_not_read_is_left_to_vllm() -> None:
    request = read_request(Route.COMPLETIONS, b'{"seed": ' + b"9" * 10_000 + b', "n": 3}')
    assert request is not None
    assert (request.integer("seed"), request.integer("n")) == (None, 3)


def test_generate_needs_sampling_params() -> None:
    assert read_request(Route.GENERATE, b'{"token_ids": [1]}') is None
    assert read_request(Route.GENERATE, b'{"sampling_params": 5}') is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"top_k": 1, "top_k": 0}',
        b'{"top_k": 0, "x": NaN}',
        b'{"top_k": 0, "x": Infinity}',
        b'{"top_k": 0, "x": 1e400}',
        b'{"top_k": 0, "x": "\\ud800"}',
        b'\xef\xbb\xbf{"top_k": 0}',
        '{"top_k": 0}'.encode("utf-16"),
    ],
)
def test_whatever_pythons_json_takes_is_read(body: bytes) -> None:
    request = read_request(Route.COMPLETIONS, body)
    assert request is not None
    assert request.integer("top_k") == 0


def test_a_repeated_object_of_the_wrong_type_does_not_hide_the_last() -> None:
    body = b'{"sampling_params": 5, "sampling_params": {"top_k": 0}}'
    request = read_request(Route.GENERATE, body)
    assert request is not None
    assert request.integer("top_k") == 0


@pytest.mark.parametrize("route", [*Route, INVOCATIONS])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("closed", [False, True])
def test_what_is_nested_too_deeply_is_known_to_be(route: str, encoding: str, closed: bool) -> None:
    """vLLM on Python 3.13 reads thousands of levels, of which we read a thousand."""
    text = (
        '{"a": ' + "[" * 500_000 + ("]" * 500_000 if closed else "") + ', "seed": 1, "prompt": "a"}'
    )
    request = read_request(route, text.encode(encoding))
    assert request is not None
    assert request.too_deep
    assert request.integer("seed") is None


@pytest.mark.parametrize(
    ("sent", "stream"),
    [("true", True), ("1", True), ('"yes"', True), ("false", False), ("null", False), ("7", False)],
)
def test_stream_is_read_as_a_boolean(sent: str, stream: bool) -> None:
    request = read_request(Route.CHAT, f'{{"stream": {sent}}}'.encode())
    assert request is not None
    assert request.stream is stream


def test_the_request_id_is_a_string_or_nothing() -> None:
    for body, expected in ((b'{"request_id": "a"}', "a"), (b'{"request_id": 1}', None)):
        request = read_request(Route.CHAT, body)
        assert request is not None
        assert request.request_id == expected
