"""Every way of lying that is collected is caught, and honest rollouts are not.

`benchmarks/corruption_bench.py` does the same with many more rollouts; see docs/replay_power.md.
"""

from __future__ import annotations

import copy
import random
from functools import lru_cache

import pytest

from app.errors import UnusableInput
from app.replay.report import ReplayVerdict, render_text, replay
from app.verdict.finding import Severity
from tests.replay.corruptions import KINDS, Kind
from tests.replay.corruptions.rows import Case, rows_of, with_rows
from tests.replay.corruptions.source import VERSIONS, honest_case

ROWS = 120
# One rollout drawn with Philox and one with MurmurHash3, with wide masks at a temperature of 2.
NUMBERS = (11, 3)


@lru_cache
def honest(number: int, choices: int = 1) -> Case:
    return honest_case(number, ROWS, **({"n": choices} if choices > 1 else {}))


def seeded(number: int) -> random.Random:
    return random.Random(number)  # noqa: S311 - the same corruption every time


def corrupted(kind: Kind, number: int) -> Case:
    case = kind.corrupt(honest(number, kind.choices), seeded(number))
    assert case is not None
    return case


def is_caught(case: Case) -> bool:
    try:
        return replay(case).verdict is ReplayVerdict.INCONSISTENT
    except UnusableInput:
        return True


@pytest.mark.parametrize("kind", [k for k in KINDS if not k.unseen], ids=lambda kind: kind.name)
def test_a_lie_is_caught(kind: Kind) -> None:
    assert [is_caught(corrupted(kind, number)) for number in NUMBERS] == [True, True]


@pytest.mark.parametrize("kind", [k for k in KINDS if k.unseen], ids=lambda kind: kind.name)
def test_what_cannot_be_seen_is_not_called_a_lie(kind: Kind) -> None:
    for number in NUMBERS:
        report = replay(corrupted(kind, number))
        drawn_otherwise = report.rows["mismatch"] > 0
        assert drawn_otherwise or report.verdict is not ReplayVerdict.INCONSISTENT


def test_twenty_kinds_and_more_are_collected_under_names_of_their_own() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 20


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_corruption_leaves_the_case_as_it_is(kind: Kind) -> None:
    case = honest_case(3, 6, **({"n": kind.choices} if kind.choices > 1 else {}))
    before = copy.deepcopy(case)
    assert kind.corrupt(case, seeded(5)) != case
    assert case == before


def test_rows_written_back_are_the_rows_that_were_read() -> None:
    for number in range(len(VERSIONS)):
        case = honest_case(number, 5)
        again = with_rows(case, rows_of(case))
        assert again["response"]["choices"][0] == case["response"]["choices"][0]


@pytest.mark.parametrize("number", range(20))
def test_an_honest_rollout_is_left_alone(number: int) -> None:
    shapes: tuple[Case, ...] = ({}, {"seed": None}, {"logprobs": 5}, {"logprobs": None}, {"n": 2})
    report = replay(honest_case(number, 60, **shapes[number // 4]))
    assert report.verdict is not ReplayVerdict.INCONSISTENT, render_text(report)
    assert not [f for f in report.findings if f.severity is Severity.ERROR]
    if shapes[number // 4] in ({}, {"n": 2}):
        assert report.verdict is ReplayVerdict.CONSISTENT
