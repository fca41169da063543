"""The likelihood test: its expectation under the null hypothesis is computed, not simulated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.replay.statistics.likelihood import POWERS, likelihood_test, p_value_of_mixture
from tests.replay.statistics.rows import Row, drawn_from, every_draw, known, random_rows

NEAR_SINGLETON = [1 - 1e-7, 1e-7]
TIED = [0.25] * 4
CASES: dict[str, list[Row]] = {
    "ordinary": [[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]],
    "nearly certain": [NEAR_SINGLETON, NEAR_SINGLETON, [0.999, 0.001]],
    "tied": [TIED, [0.4, 0.4, 0.2]],
    "one row": [[0.9, 0.1]],
}


def _false_alarm_rate(rows: list[Row], rate: float) -> float:
    return sum(
        probability
        for probability, drawn in every_draw(rows)
        if likelihood_test(known(rows, drawn)).test.p_value <= rate
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rate", [0.2, 1e-2, 1e-4, 1e-6])
def test_false_alarms_are_at_most_as_frequent_as_the_p_value_says(name: str, rate: float) -> None:
    assert _false_alarm_rate(CASES[name], rate) <= rate


def test_each_ratio_has_expectation_one_also_where_rows_depend_on_earlier_draws() -> None:
    first = [0.7, 0.3]
    second: dict[int, Row] = {0: [0.9, 0.1], 1: [0.5, 0.25, 0.25]}
    expectation = 0.0
    for i, p in enumerate(first):
        for j, q in enumerate(second[i]):
            ratios = [
                first[i] ** s
                / sum(x ** (1 + s) for x in first)
                * second[i][j] ** s
                / sum(x ** (1 + s) for x in second[i])
                for s in POWERS
            ]
            p_value = likelihood_test(known([first, second[i]], [i, j])).test.p_value
            mixture = sum(ratios) / len(ratios)
            assert p_value == pytest.approx(min(1.0, 1.0 / mixture))
            expectation += p * q * mixture
    assert expectation == pytest.approx(1.0, abs=1e-12)


def test_z_is_centred_by_entropy_and_scaled_by_its_variance() -> None:
    rows = [[0.6, 0.3, 0.1], [0.8, 0.2]]
    mean = [sum(p * math.log(p) for p in row) for row in rows]
    variance = [
        sum(p * (math.log(p) - m) ** 2 for p in row) for row, m in zip(rows, mean, strict=True)
    ]
    z = (math.log(0.1) - mean[0] + math.log(0.8) - mean[1]) / math.sqrt(sum(variance))
    test = likelihood_test(known(rows, [2, 0])).test
    assert test.statistic == pytest.approx(z)
    assert test.nominal_p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2)))


def test_rows_of_equal_probabilities_say_nothing() -> None:
    result = likelihood_test(known([TIED] * 100, [0] * 100))
    assert (result.test.statistic, result.test.nominal_p_value) == (None, None)
    assert result.test.p_value == pytest.approx(1.0)
    assert result.told_apart(1e-6) == (None, None)


def test_a_single_draw_of_a_very_unlikely_token_refutes_no_more_than_its_probability() -> None:
    p_value = likelihood_test(known([[1 - 1e-9, 1e-9]], [1])).test.p_value
    assert 1e-9 <= p_value < 1e-6


def test_nothing_overflows_for_logprobs_near_the_floor() -> None:
    rows = known([[0.9, 0.1]] * 3, [0, 1, 0])
    rows.logprobs[1::2] = -9998.0
    result = likelihood_test(rows)
    assert result.test.p_value == 0.0
    assert np.isfinite(result.information).all()


@pytest.mark.parametrize(("power", "n"), [(1 / 1.5, 700), (1.5, 700), (0.0, 100), (50.0, 100)])
def test_other_temperatures_are_refuted(power: float, n: int) -> None:
    rng = np.random.default_rng(5)
    rows = random_rows(rng, n)
    assert likelihood_test(known(rows, drawn_from(rng, rows, power))).test.p_value < 1e-6 / 3


def test_told_apart_holds_what_it_promises() -> None:
    rng = np.random.default_rng(6)
    rows = random_rows(rng, 300)
    colder, hotter = likelihood_test(known(rows, [0] * 300)).told_apart(1e-3)
    assert colder is not None
    assert hotter is not None
    assert colder < 1 < hotter
    for temperature in (colder, hotter):
        refuted = [
            likelihood_test(known(rows, drawn_from(rng, rows, 1 / temperature))).test.p_value
            <= 1e-3
            for _ in range(40)
        ]
        assert np.mean(refuted) >= 0.8


def test_mixture_averages_ratios_in_any_range() -> None:
    assert p_value_of_mixture(np.array([math.log(3.0), math.log(1.0)])) == pytest.approx(0.5)
    assert p_value_of_mixture(np.array([-1e6, 2000.0])) == 0.0
    assert p_value_of_mixture(np.array([-5.0, -7.0])) == 1.0
