"""Whole verdicts and derived values on generated proposals, against every version in the lab."""

from __future__ import annotations

from collections import Counter

import pytest

from lab.engine_agreement import Agreement, Answers, Comparison, compare
from lab.engine_cases import FAMILIES, engine_cases, models
from lab.engine_values import main as compare_values
from lab.environment import Lab

# Enough to see a rule that refuses too much; the goal of 99 % is for `lab.engine_agreement`.
COUNT = 120


@pytest.fixture(scope="module", params=Lab.default().versions())
def compared(request: pytest.FixtureRequest) -> tuple[Comparison, ...]:
    version = str(request.param)
    cases = engine_cases(version, COUNT)
    return tuple(compare(version, cases, Answers(Lab.default(), version).of(cases)))


def test_nothing_that_vllm_takes_is_refused(compared: tuple[Comparison, ...]) -> None:
    wrong = [c for c in compared if c.agreement is Agreement.FALSE_REJECTION]
    assert [str(c) for c in wrong] == []


def test_most_refusals_are_foreseen_and_nothing_is_left_open(
    compared: tuple[Comparison, ...],
) -> None:
    counts = Counter(c.agreement for c in compared if c.agreement is not Agreement.UNKNOWN)
    assert counts[Agreement.SAME] >= 0.9 * counts.total()
    assert counts[Agreement.UNDETERMINED] <= 0.02 * counts.total()


@pytest.mark.parametrize("version", Lab.default().versions())
def test_derived_values_are_vllms(version: str) -> None:
    assert compare_values([version, "--count", str(COUNT)]) == 0


def test_every_model_of_the_lab_has_a_family() -> None:
    drafts = {"qwen3-4b-draft"}
    assert {name for names in FAMILIES.values() for name in names} == set(models()) - drafts


def test_cases_are_the_same_every_time() -> None:
    first, again = (engine_cases("0.32.0", 30) for _ in range(2))
    assert [c.as_json() for c in first] == [c.as_json() for c in again]
    assert len({str(c.as_json()) for c in first}) == 30
