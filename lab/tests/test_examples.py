"""What the rules give as examples, against the real answer of one version."""

from __future__ import annotations

import pytest

from lab.examples import Compared, Outcomes, compare
from lab.tests.conftest import VERSION


@pytest.fixture(scope="module")
def compared() -> tuple[Compared, ...]:
    return compare(VERSION, first_only=True, jobs=2)


def test_vllm_refuses_what_a_rule_says_it_does(compared: tuple[Compared, ...]) -> None:
    wrong = [str(one) for one in compared if one.outcome is Outcomes.FALSE_REJECTION]

    assert wrong == []
    assert sum(one.outcome is Outcomes.SAME for one in compared) > 100


def test_nearly_all_are_refused_where_the_rule_says(compared: tuple[Compared, ...]) -> None:
    elsewhere = [str(one) for one in compared if one.outcome is Outcomes.ANOTHER_REASON]

    assert len(elsewhere) <= len(compared) // 10, elsewhere
