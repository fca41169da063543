"""What importance ratios come from: bf16 noise, kept mass, another temperature, or none of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.replay.options import Analysis, Normalisation

# What bf16 alone does to importance ratios, measured without truncation: TRL pull 7269 (up to
# 8.0 % of tokens outside [0.9, 1.1] from the chunk size of a forward pass; 5.9 to 6.9 % between
# vLLM and trainer), TRL issue 6789.
NOISE_SHARE_OUTSIDE = 0.08
# A mean log ratio beyond this with one sign is no noise: masks that keep a mass of 0.965 give
# -0.036, of 0.895 -0.111 (TRL pull 7269).
NOISE_OFFSET = 0.02
# NeMo-RL's guide calls a mean k3 below this acceptable; prime-rl pull 3431 saw 3e-4 to 4.6e-4
# over 200 steps, with masks and without.
NOISE_K3 = 1e-3
# The only token of a mask has probability one, so a trainer that normalises over masks gives it
# zero but for rounding.
SINGLETON_NOISE = 1e-4
# A softmax over the mask in fp32 sums to one this closely; a larger log mass is another one's.
MASK_SUM_NOISE = 1e-3
# The mean of such ratios is still a double; JSON has no infinity.
_LARGEST = 600.0
# Fewer tokens or singletons than this say nothing of a mean.
_ENOUGH = 8
# An exponent this far from one is another temperature; bf16 noise stays well within.
_SLOPE_NOISE = 0.05
# Standard errors by which a mean must differ from zero to be called an offset.
_ERRORS = 3.0


class Diagnosis(StrEnum):
    """What the ratios come from."""

    NOISE = "noise"
    VOCABULARY = "normalised_over_vocabulary"
    TEMPERATURE = "other_temperature"
    UNEXPLAINED = "unexplained"
    TOO_FEW = "too_few_tokens"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """The tokens of all choices that have both logprobs, k of them.

    Attributes:
        log_ratio: trainer's less sampler's logprob, (k,).
        log_mass: of the mask in the trainer's numbers, (k,); NaN where they were not given.
        singleton: whether the mask holds the token alone, (k,).
        slope: exponent that takes the sampler's probabilities on the mask to the trainer's.
        slope_error: its standard error.
    """

    log_ratio: NDArray[np.float64]
    log_mass: NDArray[np.float64]
    singleton: NDArray[np.bool_]
    slope: float | None
    slope_error: float


def diagnose(tokens: Tokens, analysis: Analysis) -> tuple[Diagnosis, str]:
    """Say what the ratios come from, in a word and in a sentence with its numbers."""
    n = len(tokens.log_ratio)
    if n < _ENOUGH:
        return Diagnosis.TOO_FEW, f"{n} tokens can be compared, too few to say anything of a mean"
    summary = ratios(tokens.log_ratio, analysis.trainer_band)
    offset = summary["log_ratio"]["mean"]
    said = f"the mean log ratio is {offset:+.4f} over {n} tokens"
    if tokens.slope is not None and abs(tokens.slope - 1.0) > max(
        _SLOPE_NOISE, _ERRORS * tokens.slope_error
    ):
        return Diagnosis.TEMPERATURE, (
            f"{said}; on the masks the trainer's logprobs are {tokens.slope:.3f} times the "
            "sampler's but for a constant a row: its logits are divided by another temperature"
        )
    stated = analysis.trainer_normalisation
    if (over_vocabulary := _over_vocabulary(tokens)) is not None:
        wrong = ", although it is said to be over the mask" if stated is Normalisation.MASK else ""
        return Diagnosis.VOCABULARY, f"{said}; {over_vocabulary}{wrong}"
    seen = (
        f"{said}, {summary['ratio']['share_outside']:.1%} of ratios are outside the band and k3 "
        f"is {summary['k3']:.2g}"
    )
    if _is_noise(summary):
        return Diagnosis.NOISE, f"{seen}: no more than bf16 does"
    told = not np.isnan(tokens.log_mass).all() or np.count_nonzero(tokens.singleton) >= _ENOUGH
    if offset < -NOISE_OFFSET and not told:
        if stated is Normalisation.VOCABULARY:
            return Diagnosis.VOCABULARY, (
                f"{said}, which is at most their log kept mass; the trainer is said to normalise "
                "over the vocabulary. Its logprobs on the masks would tell mass from noise"
            )
        return Diagnosis.UNEXPLAINED, (
            f"{seen}: more than bf16 does. A trainer that normalises over the vocabulary has such "
            "an offset; its logprobs on the masks would tell"
        )
    return Diagnosis.UNEXPLAINED, (
        f"{seen}: more than bf16 does, and no normalisation explains it; compare weights, "
        "temperature, penalties and the alignment of tokens"
    )


def ratios(log_ratio: NDArray[np.float64], band: tuple[float, float]) -> dict[str, Any]:
    """Summarise raw, unclipped importance ratios trainer / sampler of k tokens, (k,).

    k1 and k3 estimate KL(sampler || trainer) from the sampler's tokens, k3 without its variance:
    Schulman, "Approximating KL divergence", 2020, http://joschu.net/blog/kl-approx.html.
    """
    if not len(log_ratio):
        return {"ratio": None, "log_ratio": None, "k1": None, "k3": None}
    ratio = np.exp(np.minimum(log_ratio, _LARGEST))
    outside = (ratio < band[0]) | (ratio > band[1])
    return {
        "ratio": {
            "mean": float(ratio.mean()),
            "median": float(np.median(ratio)),
            "min": float(ratio.min()),
            "max": float(ratio.max()),
            "band": list(band),
            "share_outside": float(outside.mean()),
        },
        "log_ratio": {
            "mean": float(log_ratio.mean()),
            "standard_deviation": float(log_ratio.std()),
            "standard_error": standard_error(log_ratio),
        },
        "k1": float(-log_ratio.mean()),
        "k3": float((ratio - 1.0 - log_ratio).mean()),
    }


def standard_error(values: NDArray[np.float64]) -> float | None:
    """Standard error of the mean of k values; None of fewer than two."""
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _is_noise(summary: dict[str, Any]) -> bool:
    offset, error = summary["log_ratio"]["mean"], summary["log_ratio"]["standard_error"]
    return bool(
        abs(offset) <= max(NOISE_OFFSET, _ERRORS * error)
        and summary["ratio"]["share_outside"] <= NOISE_SHARE_OUTSIDE
        and summary["k3"] <= NOISE_K3
    )


def _over_vocabulary(tokens: Tokens) -> str | None:
    """Say that the trainer normalised over the vocabulary, or None if it does not look so."""
    known = ~np.isnan(tokens.log_mass)
    if known.any():
        log_ratio, log_mass = tokens.log_ratio[known], tokens.log_mass[known]
        mean = float(log_mass.mean())
        left = log_ratio - log_mass
        error = standard_error(left) or 0.0
        if mean >= -MASK_SUM_NOISE or abs(float(left.mean())) > max(NOISE_OFFSET, _ERRORS * error):
            return None
        return (
            f"the mean log mass that masks keep of the trainer's distribution is {mean:+.4f} "
            f"(geometric mean {np.exp(mean):.4f}): the trainer normalises over the vocabulary, "
            f"and over the masks {left.mean():+.4f} would be left"
        )
    alone = tokens.log_ratio[tokens.singleton]
    if len(alone) >= _ENOUGH and float(np.mean(alone < -SINGLETON_NOISE)) > 0.5:
        return (
            f"tokens that are alone in their mask have a mean log ratio of {alone.mean():+.4f} "
            "instead of zero, which is their log kept mass: the trainer normalises over the "
            "vocabulary"
        )
    return None
