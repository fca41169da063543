"""Exact tail probabilities of the reference distributions, without scipy.

scipy.stats takes over a second to import; these are the three functions that the tests need.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Simard, L'Ecuyer, "Computing the two-sided Kolmogorov-Smirnov distribution", J. Stat. Softw.
# 39(11), 2011: from n d^2 = 2.2 on twice the one-sided probability is the two-sided one, and
# below, Pelz and Good's expansion serves where Durbin's matrix gets large.
_ONE_SIDED_FROM = 2.2
_MATRIX_UP_TO = 140
# Sums of logarithms of factorials keep about nine digits here.
_SUM_UP_TO = 100_000
_RESCALE = 1e140


def normal_two_sided(z: float) -> float:
    """Give P(|Z| >= |z|) of a standard normal Z."""
    return math.erfc(abs(z) / math.sqrt(2.0))


def chi_square_survival(x: float, df: int) -> float:
    """Give P(X >= x) of a chi-square X with `df` >= 1 degrees of freedom.

    The finite sums for whole degrees of freedom: Abramowitz, Stegun, 26.4.4 and 26.4.5.
    """
    if x <= 0.0:
        return 1.0
    half = x / 2.0
    if df % 2 == 0:
        total, order = math.exp(-half), 0.0
    else:
        total, order = math.erfc(math.sqrt(half)), 0.5
    while order < df / 2.0 - (0.0 if df % 2 else 1.0):
        step = order if df % 2 else order + 1.0
        total += math.exp(step * math.log(half) - half - math.lgamma(step + 1.0))
        order += 1.0
    return min(total, 1.0)


def kolmogorov_survival(n: int, d: float) -> float:
    """Give P(D >= d) of the two-sided Kolmogorov-Smirnov statistic of n uniforms.

    Never too small by more than a part in 1e5; in the tail, where decisions fall, twice the
    exact one-sided probability, which is an upper bound.
    """
    if d <= 0.5 / n:
        return 1.0
    if d >= 1.0:
        return 0.0
    if n * d * d >= _ONE_SIDED_FROM:
        return min(2.0 * smirnov_survival(n, d), 1.0)
    if n <= _MATRIX_UP_TO:
        return min(max(1.0 - _durbin_matrix(n, d), 0.0), 1.0)
    return min(max(1.0 - _pelz_good(n, d), 0.0), 1.0)


def smirnov_survival(n: int, d: float) -> float:
    """Give P(D+ >= d) of the one-sided statistic of n uniforms, 0 < d < 1.

    Birnbaum, Tingey, "One-sided confidence contours for probability distribution functions",
    Ann. Math. Stat. 22, 1951: all terms are positive, so nothing cancels. Above 100,000 the
    limit with its first correction, as in Simard and L'Ecuyer.
    """
    if n > _SUM_UP_TO:
        return math.exp(-((6.0 * n * d + 1.0) ** 2) / (18.0 * n))
    j = np.arange(math.floor(n * (1.0 - d)) + 1, dtype=np.float64)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, n + 1.0)))])
    whole = j.astype(np.int64)
    left = 1.0 - d - j / n
    # The last term is 0^0 where n (1 - d) is whole.
    tail = np.where(left > 0.0, left, 1.0)
    last = np.where((left > 0.0) | (n - j == 0.0), 0.0, -np.inf)
    logs = (
        log_factorials[n]
        - log_factorials[whole]
        - log_factorials[n - whole]
        + (j - 1.0) * np.log(d + j / n)
        + (n - j) * np.log(tail)
        + last
    )
    return min(d * float(np.exp(logs).sum()), 1.0)


def _durbin_matrix(n: int, d: float) -> float:
    """Give P(D < d).

    Marsaglia, Tsang, Wang, "Evaluating Kolmogorov's distribution", J. Stat. Softw. 8(18), 2003.
    """
    k = math.floor(n * d) + 1
    h = k - n * d
    size = 2 * k - 1
    matrix = np.tril(np.ones((size, size)), 1)
    powers = h ** np.arange(1.0, size + 1.0)
    matrix[:, 0] -= powers
    matrix[-1, :] -= powers[::-1]
    matrix[-1, 0] += max(2.0 * h - 1.0, 0.0) ** size
    factorials = np.array([math.factorial(i) for i in range(size + 1)], np.float64)
    distance = np.subtract.outer(np.arange(size), np.arange(size)) + 1
    matrix = np.where(distance > 0, matrix / factorials[np.maximum(distance, 0)], matrix)
    power, exponent = _matrix_power(matrix, n, k - 1)
    # times n! / n^n, one factor at a time so that neither overflows
    result = power
    for i in range(1, n + 1):
        result *= i / n
        if result < 1.0 / _RESCALE:
            result *= _RESCALE
            exponent -= 140
    return result * 10.0**exponent


def _matrix_power(matrix: NDArray[np.float64], n: int, centre: int) -> tuple[float, int]:
    """The middle entry of matrix**n as (number, power of ten)."""
    result, exponent = np.eye(len(matrix)), 0
    base, base_exponent = matrix, 0
    while n:
        if n & 1:
            result, exponent = result @ base, exponent + base_exponent
        base, base_exponent, n = base @ base, 2 * base_exponent, n >> 1
        if base[centre, centre] > _RESCALE:
            base, base_exponent = base / _RESCALE, base_exponent + 140
        if result[centre, centre] > _RESCALE:
            result, exponent = result / _RESCALE, exponent + 140
    return float(result[centre, centre]), exponent


def _pelz_good(n: int, d: float) -> float:
    """Give P(D < d) for large n.

    Pelz, Good, "Approximating the lower tail-areas of the Kolmogorov-Smirnov one-sample
    statistic", J. R. Stat. Soc. B 38, 1976.
    """
    z = math.sqrt(n) * d
    z2, z4, z6 = z**2, z**4, z**6
    pi2 = math.pi**2
    odd = (2.0 * np.arange(1.0, 30.0) - 1.0) ** 2 / 4.0
    whole = np.arange(1.0, 30.0) ** 2
    root = math.sqrt(math.pi / 2.0)
    at_odd = np.exp(-odd * pi2 / (2.0 * z2))
    at_whole = np.exp(-whole * pi2 / (2.0 * z2))
    k0 = 2.0 * root / z * at_odd.sum()
    k1 = root / (3.0 * z4) * ((pi2 * odd - z2) * at_odd).sum()
    k2 = (
        root
        / (36.0 * z**7)
        * (
            (
                6.0 * z6
                + 2.0 * z4
                + pi2 * (2.0 * z4 - 5.0 * z2) * odd
                + pi2**2 * (1.0 - 2.0 * z2) * odd**2
            )
            * at_odd
        ).sum()
    ) - root / (18.0 * z**3) * (pi2 * whole * at_whole).sum()
    k3 = (
        root
        / (3240.0 * z**10)
        * (
            (
                pi2**3 * odd**3 * (5.0 - 30.0 * z2)
                + pi2**2 * odd**2 * (-60.0 * z2 + 212.0 * z4)
                + pi2 * odd * (135.0 * z4 - 96.0 * z6)
                - 30.0 * z6
                - 90.0 * z**8
            )
            * at_odd
        ).sum()
    ) + root / (108.0 * z6) * ((-(pi2**2) * whole**2 + 3.0 * pi2 * z2 * whole) * at_whole).sum()
    return float(k0 + k1 / math.sqrt(n) + k2 / n + k3 / n**1.5)
