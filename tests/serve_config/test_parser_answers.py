"""Our reading against the recorded answers of vLLM's own parser.

`python -m lab.parser_agreement … --record tests/serve_config/parser_answers` wrote them: what
we and vLLM once differed about, and a sample of thousands of generated proposals.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.parser_agreement import Comparison, Outcome, compare
from tests.serve_config.reading import LIBRARY, VERSIONS

_DIRECTORY = Path(__file__).parent / "parser_answers"


@cache
def compared(version: str) -> tuple[Comparison, ...]:
    head, *rows = [json.loads(line) for line in _path(version).read_text().splitlines()]
    questions: list[dict[str, Any]] = [row["question"] for row in rows]
    answers = [row["answer"] for row in rows]
    return tuple(compare(LIBRARY.get(version), head["defaults"], questions, answers))


def _path(version: str) -> Path:
    return _DIRECTORY / f"{version}.jsonl"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_answer_is_ours(version: str) -> None:
    different = [c for c in compared(version) if c.outcome not in {Outcome.SAME, Outcome.LEFT_OPEN}]
    assert [str(c) for c in different] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_record_has_both_verdicts_and_little_left_open(version: str) -> None:
    those = compared(version)
    refused = sum(not c.answer["accepted"] for c in those)
    assert len(those) > 200
    assert 0.2 < refused / len(those) < 0.7
    assert sum(c.outcome is Outcome.LEFT_OPEN for c in those) < 8
