"""Whether the drawn tokens are as likely as their rows make one expect.

The sum over rows of log p(drawn) + entropy has mean zero and a known variance, which gives z.
z decides nothing by itself: rows of nearly certain tokens make it far from normal. What decides
is a mixture of likelihood ratios against rows raised to a power and normalised again, q ~
p^(1 + s), which are the rows at the temperature T / (1 + s): under the null hypothesis the
product over rows of q / p has expectation one at every row, whatever came before, so the mixture
exceeds 1 / x with a probability of at most x (Ville's inequality). Such tests are "test
martingales": Shafer, Shen, Vereshchagin, Vovk, Stat. Sci. 26(1), 2011.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.replay.statistics.known_rows import KnownRows
from app.replay.statistics.result import Tested
from app.replay.statistics.special import normal_two_sided

# s = -1 is uniform over the mask; 16 is all but greedy. Between, steps of a root of two lose less
# by falling beside the right power than they cost by being more.
_WEAK = tuple(2.0 ** (-k / 2) for k in range(12, 0, -1))
POWERS = (-1.0, *(-s for s in reversed(_WEAK)), *_WEAK, 1.0, 2.0, 4.0, 16.0)
_S = np.array(POWERS)
# Of rows of equal probabilities nothing but rounding is left.
_LEAST_VARIANCE = 1e-12
# Standard deviations by which a power of 90 % stands above one of 50 %.
_NINETY_PERCENT = 1.2815515655446004


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """The test, and what it could have told.

    Attributes:
        test: its result; the statistic is z.
        information: expected log likelihood ratio in favour of each of `POWERS`, were it true.
    """

    test: Tested
    information: NDArray[np.float64]

    def told_apart(self, rate: float) -> tuple[float | None, float | None]:
        """Give temperatures, as multiples of the right one, that would show 9 times of 10.

        The nearest below and above one among `POWERS` whose likelihood ratio would pass
        1 / rate; None where these rows are too few for any. Its variance is about twice its mean.
        """
        needed = math.log(len(POWERS) / rate)
        enough = self.information - _NINETY_PERCENT * np.sqrt(2.0 * self.information) >= needed
        colder = [1.0 / (1.0 + s) for s, told in zip(POWERS, enough, strict=True) if told and s > 0]
        hotter = [
            1.0 / (1.0 + s) for s, told in zip(POWERS, enough, strict=True) if told and -1 < s < 0
        ]
        return max(colder, default=None), min(hotter, default=None)


def likelihood_test(rows: KnownRows) -> Likelihood:
    """Test the sum of log p(drawn) + entropy."""
    total = variance = 0.0
    ratios, information = np.zeros(len(POWERS)), np.zeros(len(POWERS))
    for block in rows.blocks():
        own = block.logprobs[block.drawn_at]
        mean, spread = _moments(block)
        total += float((own - mean).sum())
        variance += float(spread.sum())
        log_norms, tilted_means = _tilted(block)
        ratios += _S * own.sum() - log_norms
        information += _S * tilted_means - log_norms
    z = total / math.sqrt(variance) if variance > _LEAST_VARIANCE else None
    return Likelihood(
        test=Tested(
            "likelihood",
            len(rows),
            z,
            None if z is None else normal_two_sided(z),
            p_value_of_mixture(ratios),
        ),
        information=np.maximum(information, 0.0),
    )


def p_value_of_mixture(log_ratios: NDArray[np.float64]) -> float:
    """Give the p-value of the average of likelihood ratios, given their logarithms, (k,)."""
    best = float(log_ratios.max())
    log_mixture = best + math.log(float(np.exp(log_ratios - best).mean()))
    return math.exp(-max(log_mixture, 0.0))


def _moments(block: KnownRows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of a row's log p(drawn), (n,) each; the mean is minus the entropy."""
    starts = block.offsets[:-1]
    p = np.exp(block.logprobs)
    mean = np.add.reduceat(p * block.logprobs, starts)
    centred = block.logprobs - np.repeat(mean, np.diff(block.offsets))
    return mean, np.add.reduceat(p * centred**2, starts)


def _tilted(block: KnownRows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each power, the log of the sum of p^(1 + s) and the mean of log p under it, (k,) each.

    Both are summed over the rows, none of which is empty.
    """
    starts = block.offsets[:-1]
    # Logprobs less the largest are at most zero, and 1 + s at least zero: nothing overflows.
    best = np.maximum.reduceat(block.logprobs, starts)
    shifted = block.logprobs - np.repeat(best, np.diff(block.offsets))
    weights = np.exp((1.0 + _S[:, None]) * shifted)
    norms = np.add.reduceat(weights, starts, axis=1)
    weights *= block.logprobs
    means = np.add.reduceat(weights, starts, axis=1) / norms
    log_norms: NDArray[np.float64] = np.log(norms).sum(axis=1) + (1.0 + _S) * best.sum()
    return log_norms, means.sum(axis=1)
