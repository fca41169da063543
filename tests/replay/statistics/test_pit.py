"""The transform and its randomisation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.replay.evidence import Evidence
from app.replay.statistics.pit import evidence_key, pit_test, randomisation, transformed
from app.replay.statistics.special import kolmogorov_survival
from app.replay.wire.case import read_case
from tests.replay.engine import Engine, chunks_of
from tests.replay.statistics.rows import drawn_from, key, known, random_rows

KEY = np.array([1, 2], np.uint64)
RANDOMISATION = [0.30931491118583454, 0.3569562367935075, 0.036904530468356844]


def test_a_draw_falls_into_its_own_step() -> None:
    u = transformed(known([[0.5, 0.3, 0.2]] * 3, [0, 1, 2]), KEY)
    v = randomisation(3, KEY)
    assert u == pytest.approx([0.5 * v[0], 0.5 + 0.3 * v[1], 0.8 + 0.2 * v[2]])


def test_randomisation_is_the_same_everywhere() -> None:
    # The raw Philox stream, which NumPy promises to keep.
    assert randomisation(3, KEY) == pytest.approx(RANDOMISATION, rel=1e-15)


def evidence(**sampling: int) -> Evidence:
    return read_case(Engine().case(logprobs=8, **sampling))


def test_the_evidence_decides_the_key() -> None:
    choices = evidence(n=2).choices
    same = evidence_key(choices)
    assert np.array_equal(same, evidence_key(evidence(n=2).choices))
    other = replace(choices[1], token_ids=choices[1].token_ids[::-1].copy())
    assert not np.array_equal(same, evidence_key([choices[0], other]))
    assert not np.array_equal(same, evidence_key(choices[:1]))


def test_the_form_of_the_evidence_does_not_change_the_key() -> None:
    case = Engine().case(logprobs=8)
    whole = evidence_key(read_case(case).choices)
    case["response"] = chunks_of(case, [5, 1])
    assert np.array_equal(whole, evidence_key(read_case(case).choices))


def test_statistic_is_the_largest_deviation_from_uniform() -> None:
    rows = known(random_rows(np.random.default_rng(1), 50), [0] * 50)
    u = np.sort(transformed(rows, KEY))
    steps = [(i / 50, (i + 1) / 50) for i in range(50)]
    largest = max(max(high - x, x - low) for x, (low, high) in zip(u, steps, strict=True))
    result = pit_test(rows, KEY)
    assert result.statistic == pytest.approx(largest)
    assert result.p_value == kolmogorov_survival(50, largest)


@given(seed=st.integers(0, 2**32), n=st.integers(1, 60))
def test_transformed_draws_are_in_the_unit_interval(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, n)
    u = transformed(known(rows, drawn_from(rng, rows)), key(rng))
    assert u.shape == (n,)
    assert 0.0 <= u.min() <= u.max() <= 1.0


def test_always_the_most_likely_is_refuted() -> None:
    assert pit_test(known([[0.5, 0.3, 0.2]] * 200, [0] * 200), KEY).p_value < 1e-20


@pytest.mark.parametrize("n", [1, 2, 8, 40])
def test_honest_draws_fall_below_a_rate_as_often_as_it_says(n: int) -> None:
    rng = np.random.default_rng(n)
    rows = random_rows(rng, n)
    values = [pit_test(known(rows, drawn_from(rng, rows)), key(rng)).p_value for _ in range(1500)]
    # 5 % of 1,500, and four standard errors.
    assert 41 <= np.count_nonzero(np.array(values) <= 0.05) <= 109
