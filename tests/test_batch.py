from __future__ import annotations

import json
from typing import Any

from app.batch import Answer, answers, write
from app.errors import InvalidEnvelope


def echo(document: Any) -> Answer:
    if "refuse" in document:
        raise InvalidEnvelope("refused")
    return Answer(document, 0)


def test_lines_are_answered_in_order_and_blank_ones_skipped() -> None:
    lines = [b'{"id": 1}\n', b"\n", b'{"id": 2}\n']
    assert [a.body for a in answers(lines, echo, unusable=2)] == [{"id": 1}, {"id": 2}]


def test_an_unusable_line_is_answered_with_its_id_and_number() -> None:
    lines = [b'{"id": "x", "refuse": true}\n', b"{broken\n", b'{"id": 3}\n']
    refused, broken, fine = answers(lines, echo, unusable=2)
    assert refused.exit_code == broken.exit_code == 2
    assert refused.body["id"] == "x"
    assert refused.body["line"] == 1
    assert broken.body["line"] == 2
    assert broken.body["error"]["errors"][0]["column"] == 2
    assert fine.body == {"id": 3}


def test_lines_are_read_one_at_a_time() -> None:
    read = 0

    def lines() -> Any:
        nonlocal read
        for _ in range(10):
            read += 1
            yield b'{"id": 1}'

    stream = answers(lines(), echo, unusable=2)
    next(stream)
    assert read == 1


def test_an_answer_is_one_line_of_json() -> None:
    text = write(Answer({"id": "a\nb", "é": 1}, 0))
    assert text.count("\n") == 1
    assert json.loads(text) == {"id": "a\nb", "é": 1}
