from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.batch import Answer, Batch, Line, LineCutter, failure, lines_of
from app.errors import InvalidEnvelope


def echo(line: Line) -> Answer:
    if b"refuse" in line.data:
        raise InvalidEnvelope("refused")
    return Answer(line.data + b"\n", 0)


def run(*pieces: bytes, limit: int = 1000) -> list[tuple[dict[str, Any], int]]:
    batch = Batch(echo, limit=limit, unusable=2)
    answers = map(batch.answer, lines_of(pieces, limit))
    return [(json.loads(answer.text), answer.exit_code) for answer in answers]


def test_lines_are_answered_in_order_and_blank_ones_skipped() -> None:
    assert run(b'{"id": 1}\n', b" \r\n", b'{"id": 2}') == [({"id": 1}, 0), ({"id": 2}, 0)]


def test_an_unusable_line_is_answered_with_its_id_and_number() -> None:
    ((refused, code), (fine, _)) = run(b'\n{"x": 1, "id": "x", "refuse": true}\n', b'{"id": 3}\n')
    assert code == 2
    assert (refused["id"], refused["line"], refused["error"]["status"]) == ("x", 2, 400)
    assert fine == {"id": 3}


def test_a_line_over_the_limit_is_not_kept() -> None:
    cutter = LineCutter(limit=10)
    for _ in range(1000):
        assert list(cutter.feed(b"x" * 100)) == []
    assert cutter._parts == [b"x" * 100]
    (line, after) = cutter.feed(b'\n{"id": 1}\n')
    assert (line.too_long, line.number) == (True, 1)
    assert (after.too_long, after.number, after.data) == (False, 2, b'{"id": 1}')


def test_a_line_may_be_as_long_as_the_limit() -> None:
    assert [code for _, code in run(b'{"id": 10}\n{"id": 100}\n', limit=10)] == [0, 2]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20)), st.integers(1, 30))
def test_lines_do_not_depend_on_how_the_bytes_come(parts: list[bytes], step: int) -> None:
    whole = b"\n".join(parts)
    pieces = [whole[at : at + step] for at in range(0, len(whole), step)]
    expected = [
        Line(number, data) for number, data in enumerate(whole.split(b"\n"), 1) if data.strip()
    ]
    assert list(lines_of(pieces, 1000)) == expected


def test_lines_are_read_one_at_a_time() -> None:
    read = 0

    def pieces() -> Any:
        nonlocal read
        for _ in range(10):
            read += 1
            yield b'{"id": 1}\n'

    next(lines_of(pieces(), 100))
    assert read == 1


def test_an_unexpected_error_is_told_and_answered_where_somebody_listens() -> None:
    def crash(line: Line) -> Answer:
        raise ZeroDivisionError

    told: list[tuple[int, Exception]] = []
    line = Line(7, b'{"id": 1}')
    batch = Batch(crash, limit=10, crashed=lambda number, error: told.append((number, error)))
    answer = json.loads(batch.answer(line).text)
    assert (answer["id"], answer["line"], answer["error"]["status"]) == (1, 7, 500)
    assert [number for number, _ in told] == [7]
    with pytest.raises(ZeroDivisionError):
        Batch(crash, limit=10).answer(line)


def test_an_answer_is_one_line_of_ascii() -> None:
    text = failure(1, InvalidEnvelope("a\nb\ud800é"), "é\n")
    assert text.count(b"\n") == 1
    assert json.loads(text.decode("ascii"))["id"] == "é\n"
