"""The rank test."""

from __future__ import annotations

import numpy as np
import pytest

from app.replay.statistics import ranks
from app.replay.statistics.ranks import rank_test
from app.replay.statistics.special import chi_square_survival
from tests.replay.statistics.rows import Row, drawn_from, every_draw, known, random_rows


@pytest.mark.parametrize(
    "rows",
    [
        [[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.7, 0.2, 0.1]],
        [[1 - 1e-7, 1e-7]] * 4,
        [[0.25] * 4] * 3,
        [[0.9, 0.1]],
    ],
)
@pytest.mark.parametrize("rate", [0.3, 1e-2, 1e-5])
def test_false_alarms_are_at_most_as_frequent_as_the_p_value_says(
    rows: list[Row], rate: float
) -> None:
    alarms = sum(
        probability
        for probability, drawn in every_draw(rows)
        if rank_test(known(rows, drawn)).p_value <= rate
    )
    assert alarms <= rate


def test_the_mixture_has_expectation_one() -> None:
    rows: list[Row] = [[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.7, 0.3]]
    # Only the part of the mixture above one shows in a p-value, so it is computed here.
    expectation = 0.0
    for probability, drawn in every_draw(rows):
        mixture = 0.0
        for prior in (1.0, 8.0, 64.0):
            seen, expected, ratio = np.zeros(3), np.zeros(3), 1.0
            for row, i in zip(rows, drawn, strict=True):
                p = np.array([*row, *[0.0] * (3 - len(row))])
                weights = (seen + prior) / (expected + prior)
                ratio *= weights[i] / float(p @ weights)
                seen[i] += 1
                expected += p
            mixture += ratio / 3
        assert rank_test(known(rows, drawn)).p_value == pytest.approx(min(1.0, 1.0 / mixture))
        expectation += probability * mixture
    assert expectation == pytest.approx(1.0, abs=1e-12)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = random_rows(rng, 300)
    drawn = drawn_from(rng, rows, 2.0)
    whole = rank_test(known(rows, drawn))
    monkeypatch.setattr("app.replay.statistics.known_rows._BLOCK", 7)
    parts = rank_test(known(rows, drawn))
    assert parts.statistic == pytest.approx(whole.statistic)
    assert parts.p_value == pytest.approx(whole.p_value)


def test_equal_rows_give_pearsons_chi_square() -> None:
    p = np.array([0.5, 0.3, 0.2])
    drawn = [0] * 60 + [1] * 20 + [2] * 20
    expected = p * 100
    pearson = float((((np.array([60, 20, 20]) - expected) ** 2) / expected).sum())
    result = rank_test(known([p.tolist()] * 100, drawn))
    assert result.statistic == pytest.approx(pearson)
    assert result.nominal_p_value == pytest.approx(chi_square_survival(pearson, 2))


def test_too_few_draws_have_no_chi_square() -> None:
    result = rank_test(known([[0.5, 0.5]] * 3, [0, 1, 0]))
    assert (result.statistic, result.nominal_p_value) == (None, None)
    assert 0.3 < result.p_value <= 1.0


def test_what_is_not_listed_is_a_cell_of_its_own() -> None:
    rows: list[Row] = [[0.5, 0.3, 0.2]] * 400
    drawn = drawn_from(np.random.default_rng(1), rows)
    as_third, as_other = known(rows, drawn), known(rows, drawn, other=True)
    assert rank_test(as_third).statistic == pytest.approx(rank_test(as_other).statistic)
    everything_else = known(rows, [2] * 400, other=True)
    assert rank_test(everything_else).p_value < 1e-50


@pytest.mark.parametrize("rank", [0, 1])
def test_always_the_same_rank_is_refuted(rank: int) -> None:
    rows = random_rows(np.random.default_rng(2), 100)
    assert rank_test(known(rows, [rank] * 100)).p_value < 1e-6 / 3


def test_chi_square_is_about_chi_square_distributed_for_rows_that_differ() -> None:
    rng = np.random.default_rng(3)
    nominal = []
    for _ in range(400):
        rows = random_rows(rng, 80)
        value = rank_test(known(rows, drawn_from(rng, rows))).nominal_p_value
        assert value is not None
        nominal.append(value)
    assert 0.42 < np.mean(nominal) < 0.58
    assert np.count_nonzero(np.array(nominal) < 0.05) < 400 * 0.05 + 4 * 4.4


def test_cells_cover_every_rank() -> None:
    assert ranks._FIRST_RANKS[0] == 0
    assert list(ranks._FIRST_RANKS) == sorted(set(ranks._FIRST_RANKS))
