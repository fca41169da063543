"""Every step of the pipeline against a slow, literal reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.catalogue.semantics import DrawGenerator
from app.replay.draw import gumbel_noise
from app.simulator.sampler import (
    LogprobsMode,
    Row,
    TopKTies,
    candidates,
    draw,
    process,
    rank,
    scores,
    support,
    top_k,
    top_p,
)
from app.simulator.sampling_params import SamplingParams
from app.simulator.tokenizer import END_TOKEN

# Sixteenths, so that ties are common, as the toy model's logits are.
ROWS = arrays(np.int16, st.integers(2, 24), elements=st.integers(-160, 160)).map(
    lambda row: (row / np.float32(16)).astype(np.float32)
)
UNTIMED = settings(deadline=None)  # the machine may be busy
BOTH = pytest.mark.parametrize("ties", list(TopKTies))


def _row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


def _processed(row: Row, *, output: tuple[int, ...] = (), **given: Any) -> Row:
    params = SamplingParams.parse(given)
    return process(row, params, prompt=[0], output=output, ties=TopKTies.LOWEST_IDS)


def _order(row: Row) -> list[int]:
    return sorted(range(row.size), key=lambda token: (-row[token], token))


@given(ROWS, st.integers(1, 30))
@UNTIMED
def test_top_k_with_lowest_ids_keeps_exactly_k(row: Row, k: int) -> None:
    kept = support(top_k(row, min(k, row.size), TopKTies.LOWEST_IDS)).tolist()

    assert kept == sorted(_order(row)[: min(k, row.size)])


@given(ROWS, st.integers(1, 30))
@UNTIMED
def test_top_k_with_all_ties_keeps_whatever_equals_the_kth(row: Row, k: int) -> None:
    k = min(k, row.size)
    threshold = row[_order(row)[k - 1]]

    kept = support(top_k(row, k, TopKTies.KEEP_ALL)).tolist()

    assert kept == [token for token in range(row.size) if row[token] >= threshold]
    assert len(kept) >= k


def test_the_versions_of_top_k_differ_only_in_ties() -> None:
    row = _row(1, 2, 2, 2, 3)

    assert support(top_k(row, 2, TopKTies.LOWEST_IDS)).tolist() == [1, 4]
    assert support(top_k(row, 2, TopKTies.KEEP_ALL)).tolist() == [1, 2, 3, 4]


@given(ROWS, st.floats(0.01, 0.999))
@UNTIMED
def test_top_p_keeps_the_fewest_likeliest_tokens_that_reach_p(row: Row, p: float) -> None:
    kept = support(top_p(row, p)).tolist()

    order = _order(row)
    weights = [math.exp(float(row[token]) - float(row.max())) for token in order]
    reached = np.cumsum(weights) / sum(weights)
    assert kept == sorted(order[: len(kept)])
    assert kept, "at least one token stays"
    assert reached[len(kept) - 1] >= p - 1e-5
    if len(kept) > 1:
        assert reached[len(kept) - 2] < p + 1e-5


@given(ROWS, st.floats(0.01, 1))
@UNTIMED
def test_min_p_compares_with_the_likeliest_token(row: Row, min_p: float) -> None:
    kept = support(_processed(row, min_p=min_p)).tolist()

    floor = float(row.max()) + math.log(min_p)
    for token in range(row.size):
        if abs(float(row[token]) - floor) > 1e-4:
            assert (token in kept) == (row[token] > floor)


@given(ROWS, st.floats(0.01, 2))
@UNTIMED
def test_temperature_divides_and_forbids_nothing(row: Row, temperature: float) -> None:
    processed = _processed(row, temperature=temperature)

    np.testing.assert_array_equal(processed, row / np.float32(temperature))


def test_temperature_comes_before_min_p() -> None:
    row = _row(0, 1)

    assert support(_processed(row, min_p=0.5)).tolist() == [1]
    assert support(_processed(row, min_p=0.5, temperature=2)).tolist() == [0, 1]


def test_top_p_counts_the_survivors_of_top_k() -> None:
    row = np.log(_row(0.4, 0.3, 0.2, 0.1))

    # Of the two survivors the first has 4/7, which is enough for 0.5 but not for 0.6.
    assert support(_processed(row, top_k=2, top_p=0.5)).tolist() == [0]
    assert support(_processed(row, top_k=2, top_p=0.6)).tolist() == [0, 1]
    assert support(_processed(row, top_p=0.6)).tolist() == [0, 1]


def test_allowed_tokens_are_all_that_remains() -> None:
    assert support(_processed(_row(5, 4, 3, 2), allowed_token_ids=[3, 1])).tolist() == [1, 3]


def test_bias_is_added_before_the_filters() -> None:
    processed = _processed(_row(5, 4, 3), logit_bias={2: 10.0}, top_k=1)

    assert support(processed).tolist() == [2]
    assert processed[2] == 13


def test_bias_cannot_bring_back_what_is_not_allowed() -> None:
    processed = _processed(_row(5, 4, 3), logit_bias={2: 10.0}, allowed_token_ids=[0])

    assert support(processed).tolist() == [0]


@pytest.mark.parametrize(("generated", "forbidden"), [(0, True), (1, True), (2, False)])
def test_stop_tokens_are_forbidden_below_the_minimum_length(
    generated: int, forbidden: bool
) -> None:
    row = np.zeros(END_TOKEN + 1, dtype=np.float32)

    processed = _processed(
        row, output=(7,) * generated, min_tokens=2, stop_token_ids=[5], ignore_eos=True
    )

    assert np.isinf(processed[[5, END_TOKEN]]).tolist() == [forbidden, forbidden]
    assert np.isfinite(np.delete(processed, [5, END_TOKEN])).all()


@given(
    ROWS.filter(lambda row: row.size > 4),
    st.lists(st.integers(0, 4), max_size=6),
    st.floats(0.5, 2),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
@UNTIMED
def test_penalties_follow_their_formula(
    row: Row, output: list[int], repetition: float, frequency: float, presence: float
) -> None:
    processed = _processed(
        row,
        output=tuple(output),
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )

    for token in range(row.size):
        expected = float(row[token])
        if token == 0 or token in output:
            expected = expected / repetition if expected > 0 else expected * repetition
        if token in output:
            expected -= frequency * output.count(token) + presence
        assert processed[token] == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(
    ("output", "forbidden"), [((), False), ((71,), True), ((71, 5), False), ((5, 71), True)]
)
def test_a_bad_word_is_forbidden_only_where_it_would_be_completed(
    output: tuple[int, ...], forbidden: bool
) -> None:
    processed = _processed(np.zeros(100, dtype=np.float32), output=output, bad_words=["hi"])

    assert np.isinf(processed[72]) == forbidden
    assert np.isfinite(np.delete(processed, 72)).all()


def test_a_bad_word_of_one_token_is_always_forbidden() -> None:
    assert np.isinf(_processed(np.zeros(100, dtype=np.float32), bad_words=["h"])[71])


@given(ROWS)
@UNTIMED
def test_greedy_rows_are_neither_scaled_nor_filtered(row: Row) -> None:
    np.testing.assert_array_equal(_processed(row, temperature=0, top_k=1, min_p=0.9), row)


@given(ROWS)
@UNTIMED
def test_the_models_row_is_left_as_it_is(row: Row) -> None:
    before = row.copy()
    given: Mapping[str, Any] = {
        "logit_bias": {0: 1.0},
        "repetition_penalty": 1.5,
        "temperature": 0.5,
        "top_k": 1,
        "min_p": 0.1,
    }

    _processed(row, **given)

    np.testing.assert_array_equal(row, before)


@BOTH
@given(row=ROWS, k=st.integers(1, 24), p=st.floats(0.05, 1), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=30, deadline=None)
def test_the_sampled_token_is_in_the_mask(
    ties: TopKTies, row: Row, k: int, p: float, seed: int
) -> None:
    params = SamplingParams.parse({"top_k": k, "top_p": p})
    processed = process(row, params, prompt=[0], output=[], ties=ties)

    token = draw(processed, generator=DrawGenerator.MURMUR3, seed=seed, position=3)

    assert token in support(processed).tolist()


@pytest.mark.parametrize("generator", list(DrawGenerator))
@pytest.mark.parametrize("fp64", [False, True])
@given(row=ROWS, seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_draw_is_the_argmax_of_row_plus_noise(
    generator: DrawGenerator, fp64: bool, row: Row, seed: int, position: int
) -> None:
    token = draw(row, generator=generator, seed=seed, position=position, fp64=fp64)

    sums = []
    for candidate in range(row.size):
        noise = gumbel_noise(
            generator,
            seed=seed,
            positions=np.array([position]),
            token_ids=np.array([candidate]),
            fp64=fp64,
        )
        sums.append(row[candidate] + noise[0])
    assert token == sums.index(max(sums))


def test_draws_follow_the_distribution() -> None:
    row = np.log(_row(0.5, 0.3, 0.2))

    drawn = [
        draw(row, generator=DrawGenerator.MURMUR3, seed=1, position=position)
        for position in range(4000)
    ]

    shares = np.bincount(drawn, minlength=3) / len(drawn)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.03)


def test_nothing_left_to_draw_gives_the_first_token() -> None:
    row = np.full(5, -np.inf, dtype=np.float32)

    assert draw(row, generator=DrawGenerator.MURMUR3, seed=1, position=0) == 0
    assert support(row).tolist() == []
    assert math.isnan(candidates(row, 0, 0, normalised=True)[0].logprob)


@given(ROWS)
@UNTIMED
def test_scores_are_log_probabilities_that_sum_to_one(row: Row) -> None:
    values = scores(row, normalised=True).astype(np.float64)

    assert np.exp(values).sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(values, row - np.log(np.exp(row.astype(float)).sum()), atol=1e-4)
    assert scores(row, normalised=False) is row


def test_the_sampled_token_comes_first_and_appears_once() -> None:
    row = _row(1, 3, 2, 3)

    found = candidates(row, 2, 2, normalised=False)
    assert [(c.token, c.rank) for c in found] == [(2, 3), (1, 1), (3, 2)]
    found = candidates(row, 3, 2, normalised=False)
    assert [(c.token, c.rank) for c in found] == [(3, 2), (1, 1)]


def test_chosen_ids_have_their_number_for_a_rank() -> None:
    found = candidates(_row(1, 3, 2, 3), 1, 0, normalised=False, chosen=[2, 0])

    assert [(c.token, c.logprob, c.rank) for c in found] == [(1, 3, 2), (2, 2, 1), (0, 1, 2)]


def test_ranks_count_ties_and_the_padding_of_impossible_tokens() -> None:
    row = _row(1, 3, 2, 3)
    row[0] = -np.inf

    assert [rank(row, token) for token in range(4)] == [8192, 2, 3, 2]


@pytest.mark.parametrize(
    ("mode", "processed", "normalised"),
    [
        ("raw_logprobs", False, True),
        ("processed_logprobs", True, True),
        ("raw_logits", False, False),
        ("processed_logits", True, False),
    ],
)
def test_modes_say_which_row_and_which_numbers(
    mode: str, processed: bool, normalised: bool
) -> None:
    assert LogprobsMode(mode).processed is processed
    assert LogprobsMode(mode).normalised is normalised


def test_an_infinite_bias_is_sampled_and_left_out_of_the_mask() -> None:
    processed = _processed(_row(5, 4, 3), logit_bias={2: math.inf}, top_k=2)

    assert draw(processed, generator=DrawGenerator.MURMUR3, seed=1, position=0) == 2
    assert support(processed).tolist() == [0]
