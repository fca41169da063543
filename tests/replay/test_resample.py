"""Fresh draws from the returned rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.errors import InvalidEnvelope
from app.replay.evidence import Choice
from app.replay.options import Resampling
from app.replay.report import render_text, replay
from app.replay.resample import Resampled, resample, standing
from app.replay.support import support_of
from app.replay.wire.case import read_case
from tests.replay.engine import Engine
from tests.replay.reference import scalar_philox

ROWS = [[0.5, 0.3, 0.2], [1.0], [0.9, 0.1], [0.25] * 4]


def choice_of(rows: list[list[float]] = ROWS, drawn: tuple[int, ...] = (0, 0, 1, 3)) -> Choice:
    masks = [[10 * (row + 1) + i for i in range(len(p))] for row, p in enumerate(rows)]
    case = {
        "vllm_version": "0.32.0",
        "request": {"token_ids": [1], "sampling_params": {"top_k": 50}},
        "response": {
            "choices": [
                {
                    "token_ids": [mask[i] for mask, i in zip(masks, drawn, strict=True)],
                    "sampling_mask": masks,
                    "logprobs": {"on_mask": [math.log(p) for row in rows for p in row]},
                }
            ]
        },
    }
    return read_case(case).choices[0]


def redraw(index: int = 0, **asked: Any) -> Resampled:
    choice = replace(choice_of(), index=index)
    return resample(choice, support_of(choice, ranked=False), Resampling(**asked))


def test_each_draw_is_the_documented_one() -> None:
    seed = (5 << 32) + 7
    drawn = redraw(2, draws=5, seed=seed).ids
    assert drawn is not None
    for row, p in enumerate(ROWS):
        for d in range(5):
            words = scalar_philox([d // 2, row, 2, 0], [7, 5])[2 * (d % 2) :][:2]
            u = ((words[0] << 32 | words[1]) >> 11) * 2.0**-53
            place = next(i for i in range(len(p)) if sum(p[: i + 1]) > u)
            assert drawn[row, d] == 10 * (row + 1) + place


def ids(index: int, draws: int, seed: int) -> list[list[int]]:
    drawn = redraw(index, draws=draws, seed=seed).ids
    assert drawn is not None
    return [[int(i) for i in row] for row in drawn]


def test_neither_the_number_of_draws_nor_blocks_change_a_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = ids(0, 101, 1)
    assert [row[:10] for row in many] == ids(0, 10, 1)
    likelihoods = redraw(draws=101, seed=1).drawn
    monkeypatch.setattr("app.replay.resample._BLOCK", 1)
    assert ids(0, 101, 1) == many
    blocked = redraw(draws=101, seed=1).drawn
    assert blocked == pytest.approx(likelihoods)


def test_seed_and_choice_change_the_draws() -> None:
    draws = [ids(index, 50, seed) for index, seed in ((0, 0), (1, 0), (0, 1), (0, 2**64 - 1))]
    assert all(one not in draws[:i] for i, one in enumerate(draws))


def test_draws_follow_the_rows() -> None:
    result = redraw(draws=20_000, seed=3, ids=False)
    assert result.ids is None
    expected = np.array([0.5, 1.0, 0.1, 0.25])
    error = np.sqrt(expected * (1 - expected) / 20_000)
    assert np.all(np.abs(result.frequency - expected) <= 4 * error)


def test_log_likelihoods_are_those_of_the_drawn_sequences() -> None:
    result = redraw(draws=4, seed=9)
    assert result.ids is not None
    for d in range(4):
        expected = sum(
            math.log(p[result.ids[row, d] - 10 * (row + 1)]) for row, p in enumerate(ROWS)
        )
        assert result.drawn[d] == pytest.approx(expected)
    assert result.sampled == pytest.approx(math.log(0.5 * 1.0 * 0.1 * 0.25))


def test_rows_without_distribution_are_null() -> None:
    case = Engine().case(seed=None, top_k=20, logprobs=8, max_tokens=6)
    case["options"] = {"resample": {"draws": 3}}
    (choice,) = replay(case).as_json()["resample"]["choices"]
    assert choice["rows"] == 0
    assert choice["rows_without_distribution"] == 6
    assert choice["frequency"] == [None] * 6
    assert choice["token_ids"] == [None] * 6
    assert choice["log_likelihood"] is None


def test_impossible_members_are_never_drawn() -> None:
    choice = choice_of([[0.5, 0.5]], (0,))
    support = support_of(choice, ranked=False)
    support.logprobs[1] = -9999.0
    result = resample(choice, support, Resampling(draws=100))
    assert result.frequency.tolist() == [1.0]


def test_rows_that_the_engine_did_not_sample_are_not_drawn() -> None:
    choice = replace(choice_of(), replayed=np.array([True, False, True, False]))
    result = resample(choice, support_of(choice, ranked=False), Resampling(draws=2))
    assert result.rows.tolist() == [0, 2]
    assert result.sampled == pytest.approx(math.log(0.5 * 0.1))
    assert result.ids is not None
    assert np.array_equal(result.ids, np.array(ids(0, 2, 0))[[0, 2]])


def test_a_token_outside_its_mask_has_no_place_among_the_draws() -> None:
    case = Engine().case(seed=None, logprobs=8, max_tokens=3)
    choice = case["response"]["choices"][0]
    choice["sampling_mask"][1].remove(choice["token_ids"][1])
    case["options"] = {"resample": {"draws": 3, "ids": False}}
    (drawn,) = replay(case).as_json()["resample"]["choices"]
    assert drawn["log_likelihood"] is None
    assert drawn["frequency"][1] == 0.0
    assert "token_ids" not in drawn


def test_report_says_where_the_sampled_sequence_lies() -> None:
    case = Engine().case(seed=None, logprobs=8, max_tokens=50, n=2)
    case["options"] = {"resample": {"draws": 99, "seed": 4}}
    report = replay(case)
    body = report.as_json()["resample"]
    assert (body["draws"], body["seed"]) == (99, 4)
    for choice in body["choices"]:
        place = choice["log_likelihood"]
        assert place["below"] + place["equal"] + place["above"] == 99
        assert place["p_value"] > 0.01
        assert [len(row) for row in choice["token_ids"]] == [99] * 50
    assert "99 draws: log-likelihood" in render_text(report)


@pytest.mark.parametrize(
    ("sampled", "expected"), [(-5.0, 2 / 11), (5.0, 2 / 11), (0.5, 8 / 11), (0.0, 1.0)]
)
def test_p_value_counts_the_sequence_among_the_draws(sampled: float, expected: float) -> None:
    assert standing(sampled, np.linspace(-1, 1, 10))["p_value"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("asked", "pointer", "says"),
    [
        ({"draws": 0}, "/options/resample/draws", ">= 1"),
        ({"draws": 100_001}, "/options/resample/draws", "<= 100000"),
        ({"draws": 100_000}, "/options/resample/draws", '"ids": false'),
        ({"draws": 3, "seed": -1}, "/options/resample/seed", "2**64"),
        ({"draws": 3, "seeds": 1}, "/options/resample", "seeds"),
        ({}, "/options/resample", "draws"),
    ],
)
def test_what_cannot_be_drawn_is_refused(asked: dict[str, Any], pointer: str, says: str) -> None:
    case = Engine().case(seed=None, logprobs=8, max_tokens=12)
    case["options"] = {"resample": asked}
    with pytest.raises(InvalidEnvelope) as caught:
        replay(case)
    assert caught.value.problems[0].pointer == pointer
    assert says in caught.value.problems[0].detail
