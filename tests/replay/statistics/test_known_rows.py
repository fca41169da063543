"""What is taken of a row must not depend on which of its tokens was drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from app.replay.statistics.known_rows import KnownRows, join, known_rows
from app.replay.support import support_of
from app.replay.wire.case import read_case

PEAKED = (0.55, 0.2, 0.1, 0.06, 0.05, 0.03, 0.01)
TIED = (0.4, 0.2, 0.1, 0.1, 0.1, 0.1)
FLAT = (0.125,) * 8
STEEP = (0.7, 0.297, 0.002, 0.0009, 0.0001)


def rows_of(case: dict[str, Any]) -> KnownRows:
    evidence = read_case(case)
    ranked = not evidence.sampling.logprob_token_ids
    return join(
        known_rows(evidence, choice, support_of(choice, ranked=ranked))
        for choice in evidence.choices
    )


def one_row(
    probabilities: tuple[float, ...], drawn: int, k: int, version: str, *, asked: bool = True
) -> dict[str, Any]:
    """A response of one token, listing candidates as that version does."""
    ids = [100 + 3 * i for i in range(len(probabilities))]
    listed = [drawn, *(i for i in range(k) if i != drawn and i < len(ids))]
    # Up to 0.32 the list has k entries, with the sampled token among them.
    listed = listed[:k] if version != "0.33.0" else listed
    top = [{"token_id": ids[i], "logprob": math.log(probabilities[i])} for i in listed]
    return {
        "vllm_version": version,
        "request": {
            "token_ids": [1],
            "sampling_params": {"top_k": 50, **({"logprobs": k} if asked else {})},
        },
        "response": {
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "length",
                    "token_ids": [ids[drawn]],
                    "sampling_mask": [ids],
                    "logprobs": {"content": [{**top[0], "top_logprobs": top}]},
                }
            ]
        },
    }


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
@pytest.mark.parametrize("probabilities", [PEAKED, TIED, FLAT, STEEP])
@pytest.mark.parametrize("k", range(1, 9))
def test_the_distribution_is_the_same_for_every_draw(
    version: str, probabilities: tuple[float, ...], k: int
) -> None:
    every = [
        rows_of(one_row(probabilities, drawn, k, version)) for drawn in range(len(probabilities))
    ]
    first = every[0]
    mass: dict[int, float] = {}
    for drawn, rows in enumerate(every):
        assert rows.logprobs == pytest.approx(first.logprobs, abs=1e-12)
        assert np.array_equal(rows.offsets, first.offsets)
        assert dict(rows.left_out) == dict(first.left_out)
        if len(rows):
            place = int(rows.drawn_at[0])
            mass[place] = mass.get(place, 0.0) + probabilities[drawn]
    # So drawing from the true row draws from the known one.
    for place, total in mass.items():
        assert math.exp(first.logprobs[place]) == pytest.approx(total, rel=1e-9)


def test_whole_rows_are_taken_whole() -> None:
    rows = rows_of(one_row(PEAKED, 2, 7, "0.32.0"))
    assert np.exp(rows.logprobs) == pytest.approx(PEAKED)
    assert rows.drawn_at.tolist() == [2]
    assert rows.other_last.tolist() == [False]


def test_what_is_not_always_listed_is_one_outcome() -> None:
    # Three entries: the sampled and two others, so only the first is told apart from the second,
    # which may or may not be the last that is listed.
    rows = rows_of(one_row(PEAKED, 5, 4, "0.32.0"))
    assert np.exp(rows.logprobs) == pytest.approx([0.55, 0.2, 0.25])
    assert rows.drawn_at.tolist() == [2]
    assert rows.other_last.tolist() == [True]


def test_another_is_kept_large_enough_to_be_known() -> None:
    rows = rows_of(one_row(STEEP, 0, 4, "0.32.0"))
    assert np.exp(rows.logprobs) == pytest.approx([0.7, 0.3])


def test_the_number_of_candidates_is_guessed_low_where_the_request_lacks_it() -> None:
    rows = rows_of(one_row(PEAKED, 1, 5, "0.32.0", asked=False))
    assert np.exp(rows.logprobs) == pytest.approx([0.55, 0.2, 0.25])


def packed(**changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": "length",
        "token_ids": [1, 5, 9, 3],
        "sampling_mask": [[1, 2], [5], [8, 9], [4, 6]],
        "logprobs": {"on_mask": [-0.5, math.log1p(-math.exp(-0.5)), 0.0, -0.1, None, -0.7, -0.7]},
        **changes,
    }
    return {
        "vllm_version": "0.32.0",
        "request": {"token_ids": [1], "sampling_params": {"top_k": 50}},
        "response": {"choices": [choice]},
    }


def test_rows_left_out_are_counted_by_reason() -> None:
    rows = rows_of(packed())
    assert len(rows) == 1
    assert dict(rows.left_out) == {"not_drawn_from_row": 1, "singleton": 1, "no_logprobs": 1}
    assert math.exp(rows.logprobs[0]) == pytest.approx(math.exp(-0.5))


def test_rows_that_the_engine_did_not_sample_are_left_out() -> None:
    rows = rows_of(packed(loss_mask=[False, True, True, False]))
    assert len(rows) == 0
    assert dict(rows.left_out) == {"not_replayed": 2, "singleton": 1, "no_logprobs": 1}


def test_without_logprobs_nothing_is_known() -> None:
    rows = rows_of(packed(logprobs=None))
    assert len(rows) == 0
    assert rows.left_out["no_logprobs"] == 2


def test_raw_logprobs_are_normalised() -> None:
    rows = rows_of(packed(logprobs={"on_mask": [-1.0, -2.0, -0.5, -1.0, -1.0, -1.0, -1.0]}))
    assert math.exp(rows.logprobs[0]) == pytest.approx(1 / (1 + math.exp(-1.0)))


def test_rows_of_one_probable_member_say_nothing() -> None:
    rows = rows_of(packed(logprobs={"on_mask": [0.0, -9999.0, 0.0, -9999.0, 0.0, -0.7, -0.7]}))
    assert len(rows) == 0
    assert rows.left_out["singleton"] == 3


def test_blocks_are_whole_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.replay.statistics.known_rows._BLOCK", 3)
    one = rows_of(one_row(PEAKED, 2, 7, "0.32.0"))
    rows = join([one, rows_of(packed()), one])
    blocks = list(rows.blocks())
    assert [len(block) for block in blocks] == [1, 1, 1]
    assert np.concatenate([block.logprobs for block in blocks]).tolist() == rows.logprobs.tolist()
    drawn = [block.logprobs[block.drawn_at[0]] for block in blocks]
    assert drawn == rows.logprobs[rows.drawn_at].tolist()
