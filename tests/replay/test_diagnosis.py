"""What a mismatch is said to come of."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from app.replay.report import ReplayVerdict, replay
from tests.replay.corruptions import exchange, tokens
from tests.replay.corruptions.kind import Corrupt
from tests.replay.corruptions.rows import Case, reordered, rows_of
from tests.replay.corruptions.source import answered, honest_case
from tests.replay.engine import Engine

# 0.31: speculation does not explain anything there.
UNSPECULATED = 2
ROWS = 60


def diagnosis_of(case: Any) -> str | None:
    """What the finding about draws says would explain them."""
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    said = finding.evidence.get("diagnosis")
    assert said is None or said in finding.message
    return said


def rng() -> random.Random:
    return random.Random(0)  # noqa: S311 - the same corruption every time


def lost_before(row: int) -> Callable[[Case], Case | None]:
    def corrupt(case: Case) -> Case | None:
        return reordered(case, [i for i in range(len(rows_of(case))) if i != row])

    return corrupt


def repeated_before(row: int) -> Callable[[Case], Case | None]:
    def corrupt(case: Case) -> Case | None:
        return reordered(case, [i if i < row else i - 1 for i in range(len(rows_of(case)))])

    return corrupt


@pytest.mark.parametrize(
    ("corrupt", "said"),
    [
        (exchange.use_another_version, "MurmurHash3"),
        (exchange.draw_in_double, "with --use-fp64-gumbel"),
        (exchange.lengthen_the_prompt, "-1 position away"),
        (exchange.shorten_the_prompt, "+1 position away"),
        (tokens.take_the_likeliest, "chosen greedily"),
    ],
)
def test_what_explains_every_row_is_said(corrupt: Corrupt, said: str) -> None:
    case = corrupt(honest_case(UNSPECULATED, ROWS), rng())
    assert said in (diagnosis_of(case) or "")


def test_choices_that_are_mixed_up_are_told_by_their_seeds() -> None:
    case = tokens.exchange_the_choices(honest_case(UNSPECULATED, ROWS, n=3), rng())
    assert case is not None
    said = [f.message for f in replay(case).findings if f.rule == "replay-draw"]
    assert len(said) == 2
    assert "every row repeats as choice 1" in said[0]
    assert "this is choice 0" in said[1]


@pytest.mark.parametrize(
    ("corrupt", "said"), [(lost_before(20), "was lost"), (repeated_before(20), "was repeated")]
)
def test_a_row_too_few_or_too_many_is_told(
    corrupt: Callable[[Case], Case | None], said: str
) -> None:
    diagnosis = diagnosis_of(corrupt(honest_case(UNSPECULATED, ROWS)))
    assert diagnosis is not None
    assert said in diagnosis


def test_a_single_swapped_token_has_no_explanation() -> None:
    assert diagnosis_of(tokens.swap_a_token(honest_case(UNSPECULATED, ROWS), rng())) is None


def test_an_explanation_needs_more_than_a_few_rows() -> None:
    request = honest_case(UNSPECULATED, 4)["request"]
    case = exchange.use_another_version(answered("0.31.0", request), rng())
    assert case is not None
    assert replay(case).verdict is ReplayVerdict.INCONSISTENT
    assert diagnosis_of(case) is None


def test_undeclared_speculation_is_named_as_a_possible_explanation() -> None:
    case = Engine("0.32.0", speculates=True).case(logprobs=20, max_tokens=16)
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT
    assert 0 < report.rows["mismatch"] < 12
    assert "options.speculative" in (diagnosis_of(case) or "")
    assert "options.speculative" not in (
        diagnosis_of({**case, "options": {"speculative": False}}) or ""
    )
    assert replay({**case, "options": {"speculative": True}}).consistent


def test_logprobs_that_are_a_little_off_are_not_taken_for_speculation() -> None:
    case = Engine("0.32.0", vocabulary=64).case(
        logprobs=64, top_k=40, temperature=2.0, max_tokens=600
    )
    noise = rng()
    for entry in case["response"]["choices"][0]["logprobs"]["content"]:
        for candidate in (entry, *entry["top_logprobs"]):
            candidate["logprob"] += noise.gauss(0, 0.06) if candidate["logprob"] > -9999 else 0
    report = replay(case)
    assert report.rows["mismatch"] >= 12
    assert "speculation_not_declared" not in report.rows["undecidable_reasons"]
