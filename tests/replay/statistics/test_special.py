"""Tail probabilities against scipy 1.17.1: `kstwo.sf(d, n)`, `ksone.sf(d, n)`, `chi2.sf(x, df)`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.replay.statistics.special import (
    chi_square_survival,
    kolmogorov_survival,
    normal_two_sided,
    smirnov_survival,
)

KOLMOGOROV = (
    (1, 0.6, 0.8),
    (1, 0.9, 0.19999999999999996),
    (2, 0.353553, 0.914214209528),
    (2, 0.636396, 0.26441573763200005),
    (8, 0.141421, 0.9893887038162954),
    (8, 0.282843, 0.4622731650233134),
    (8, 0.565685, 0.006038177264976343),
    (8, 0.848528, 5.543522027537068e-07),
    (100, 0.05, 0.9532159710635725),
    (100, 0.1, 0.2526927570063874),
    (100, 0.147, 0.02379018116498822),
    (100, 0.16, 0.010543506724453174),
    (100, 0.28, 1.996480599061576e-07),
    (140, 0.067612, 0.5220905016968725),
    (141, 0.042108, 0.9549059542978692),
    (141, 0.067372, 0.5221607237662103),
    (1000, 0.018974, 0.8573541534205302),
    (1000, 0.037947, 0.10942095084988368),
    (1000, 0.046802, 0.02423183409121299),
    (1000, 0.047118, 0.02282953096806813),
    (1000, 0.094868, 2.768709063768692e-08),
    (50_000, 0.00313, 0.7101812183470464),
    (50_000, 0.008944, 0.0006671898756658062),
    (1_000_000, 0.0009, 0.39250068453988984),
    (1_000_000, 0.0028, 3.0936521750069175e-07),
)
SMIRNOV = (
    (1, 0.3, 0.7),
    (2, 0.5, 0.25),
    (10, 0.5, 0.003888705),
    (1000, 0.08, 2.577094692394912e-06),
    (100_000, 0.012, 3.0794412855287246e-13),
)
CHI_SQUARE = (
    (1, 0.01, 0.920344325445942),
    (1, 30.0, 4.3204630578274955e-08),
    (2, 3.0, 0.22313016014842982),
    (3, 3.0, 0.3916251762710877),
    (4, 60.0, 2.9008631203404573e-12),
    (7, 10.0, 0.18857346751344997),
    (8, 1.0, 0.9982483774437092),
    (8, 300.0, 4.117794754094997e-60),
)


@pytest.mark.parametrize(("n", "d", "expected"), KOLMOGOROV)
def test_kolmogorov_agrees_with_scipy(n: int, d: float, expected: float) -> None:
    # Far fewer digits would do to decide; the limit above 100,000 keeps four.
    tolerance = 1e-4 if n > 100_000 else 1e-5
    assert kolmogorov_survival(n, d) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("n", "d", "expected"), SMIRNOV)
def test_smirnov_agrees_with_scipy(n: int, d: float, expected: float) -> None:
    assert smirnov_survival(n, d) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("df", "x", "expected"), CHI_SQUARE)
def test_chi_square_agrees_with_scipy(df: int, x: float, expected: float) -> None:
    assert chi_square_survival(x, df) == pytest.approx(expected, rel=1e-12)


def test_normal_agrees_with_scipy() -> None:
    assert normal_two_sided(-5.2) == pytest.approx(1.992885263386694e-07, rel=1e-12)
    assert normal_two_sided(1.5) == pytest.approx(0.13361440253771614, rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 10, 140, 141, 5_000])
def test_extreme_deviations_are_certain_or_impossible(n: int) -> None:
    assert kolmogorov_survival(n, 0.5 / n) == 1.0
    assert kolmogorov_survival(n, 1.0) == 0.0


@given(n=st.integers(1, 3_000), t=st.floats(0.3, 3.0))
def test_kolmogorov_is_a_probability_that_falls(n: int, t: float) -> None:
    d = min(t / math.sqrt(n), 0.999)
    here, further = kolmogorov_survival(n, d), kolmogorov_survival(n, min(1.1 * d, 1.0))
    assert 0.0 <= further <= here <= 1.0
