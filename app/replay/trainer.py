"""A trainer's logprobs against the sampler's: importance ratios as they are, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.replay.checks.result import Subject
from app.replay.evidence import LOGPROB_FLOOR
from app.replay.options import Analysis, Normalisation, TrainerLogprobs
from app.replay.ragged import offsets_of, reduce_rows
from app.replay.statistics.declarations import TRAINER
from app.replay.support import Support
from app.verdict.finding import Finding
from app.verdict.location import Location

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
# Masks of (nearly) equal logprobs have no slope.
_LEAST_SPREAD = 1e-9
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
class _Tokens:
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """What the comparison shows.

    Attributes:
        diagnosis: in one word.
        text: in one sentence, with its numbers.
        body: the part of the report.
    """

    diagnosis: Diagnosis
    text: str
    body: dict[str, Any]

    def findings(self) -> list[Finding]:
        """Warn of a mismatch; it is the trainer's, so it does not touch the verdict."""
        if self.diagnosis in (Diagnosis.NOISE, Diagnosis.TOO_FEW):
            return []
        return [
            Finding(
                rule=TRAINER.id,
                severity=TRAINER.severity,
                message=self.text,
                location=Location(pointer="/options/trainer_logprobs"),
                evidence={"diagnosis": self.diagnosis.value},
            )
        ]


def compare(subjects: Sequence[Subject], analysis: Analysis) -> Comparison:
    """Compare a trainer's logprobs, one `TrainerLogprobs` a subject, with the sampler's."""
    parts = [
        _sides(subject, trainer)
        for subject, trainer in zip(subjects, analysis.trainer, strict=True)
    ]
    sampler = np.concatenate([part.sampler for part in parts])
    trainer = np.concatenate([part.trainer for part in parts])
    both = ~(np.isnan(sampler) | np.isnan(trainer))
    impossible = both & ((trainer <= LOGPROB_FLOOR) | (sampler <= LOGPROB_FLOOR))
    used = both & ~impossible
    slope, slope_error = _slope(subjects, analysis.trainer)
    tokens = _Tokens(
        log_ratio=(trainer - sampler)[used],
        log_mass=np.concatenate([part.log_mass for part in parts])[used],
        singleton=np.concatenate([part.singleton for part in parts])[used],
        slope=slope,
        slope_error=slope_error,
    )
    diagnosis, text = _diagnose(tokens, analysis)
    body: dict[str, Any] = {
        "normalisation": analysis.trainer_normalisation.value,
        "tokens": int(np.count_nonzero(used)),
        "tokens_without_logprob": int(np.count_nonzero(~both)),
        "tokens_without_probability": int(np.count_nonzero(impossible)),
        **ratios(tokens.log_ratio, analysis.trainer_band),
        "mask_exponent": tokens.slope,
        "diagnosis": diagnosis.value,
        "explanation": text,
    }
    known = ~np.isnan(tokens.log_mass)
    if known.any():
        mass = tokens.log_mass[known]
        body["kept_mass"] = {
            "geometric_mean": float(np.exp(mass.mean())),
            "mean_log": float(mass.mean()),
            "smallest": float(np.exp(mass.min())),
        }
        body["over_mask"] = ratios(tokens.log_ratio[known] - mass, analysis.trainer_band)
        body["log_kept_mass"] = [
            [None if np.isnan(value) else value for value in part.log_mass.tolist()]
            for part in parts
        ]
    return Comparison(diagnosis=diagnosis, text=text, body=body)


def ratios(log_ratio: NDArray[np.float64], band: tuple[float, float]) -> dict[str, Any]:
    """Summarise raw, unclipped importance ratios trainer / sampler of k tokens, (k,).

    k1 and k3 estimate KL(sampler || trainer) from the sampler's tokens, k3 without its variance:
    Schulman, "Approximating KL divergence", 2020, http://joschu.net/blog/kl-approx.html.
    """
    if not len(log_ratio):
        return {"ratio": None, "log_ratio": None, "k1": None, "k3": None}
    # Beyond e^700 a double is infinite, which JSON has no number for.
    ratio = np.exp(np.minimum(log_ratio, 700.0))
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sides:
    """One choice's n rows: the sampled token's logprobs, the trainer's log mass, singletons."""

    sampler: NDArray[np.float64]
    trainer: NDArray[np.float64]
    log_mass: NDArray[np.float64]
    singleton: NDArray[np.bool_]


def _sides(subject: Subject, given: TrainerLogprobs) -> _Sides:
    support = subject.support
    inside = support.sampled_at >= 0
    at = support.sampled_at[inside]
    singleton = (support.masks.counts == 1) & inside
    sampler = np.full(subject.rows, np.nan)
    sampler[inside] = support.logprobs[at]
    # One member's probability over its mask is one, with or without logprobs.
    sampler[singleton & np.isnan(sampler)] = 0.0
    trainer = given.sampled.copy()
    log_mass = np.full(subject.rows, np.nan)
    if given.on_mask is not None:
        own = np.full(subject.rows, np.nan)
        own[inside] = given.on_mask[at]
        trainer = np.where(np.isnan(trainer), own, trainer)
        log_mass = _log_mass(given.on_mask, support.masks.offsets)
    return _Sides(sampler=sampler, trainer=trainer, log_mass=log_mass, singleton=singleton)


def _log_mass(on_mask: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log of the sum of each row's probabilities, (n,); NaN where one is not given."""
    best = reduce_rows(np.maximum, on_mask, offsets, np.nan)
    with np.errstate(invalid="ignore"):
        shifted = np.exp(on_mask - np.repeat(best, np.diff(offsets)))
    total: NDArray[np.float64] = np.log(reduce_rows(np.add, shifted, offsets, np.nan)) + best
    return total


def _slope(
    subjects: Sequence[Subject], given: Sequence[TrainerLogprobs]
) -> tuple[float | None, float]:
    """Regress the trainer's logprobs on the sampler's within masks; gives also the error.

    Each row's own constant, such as its normaliser, drops out; what is left is the exponent, the
    sampler's temperature over the trainer's. Tokens weigh as likely as they are.
    """
    pairs = [
        _centred(subject.support, trainer.on_mask)
        for subject, trainer in zip(subjects, given, strict=True)
        if trainer.on_mask is not None
    ]
    if not pairs or sum(rows for _, _, _, rows in pairs) < _ENOUGH:
        return None, 0.0
    weight, sampler, trained = (np.concatenate([pair[i] for pair in pairs]) for i in range(3))
    spread = float((weight * sampler**2).sum())
    if spread < _LEAST_SPREAD:
        return None, 0.0
    slope = float((weight * sampler * trained).sum()) / spread
    residual = trained - slope * sampler
    return slope, float(np.sqrt(((weight * sampler * residual) ** 2).sum())) / spread


def _centred(
    support: Support, on_mask: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], int]:
    """Weights and centred logprobs of sampler and trainer where a whole mask has both, (m',)."""
    usable = support.exact & (on_mask > LOGPROB_FLOOR)
    offsets, counts = support.masks.offsets, support.masks.counts
    whole = (reduce_rows(np.minimum, usable.astype(np.float64), offsets, 0.0) > 0) & (counts > 1)
    member = np.repeat(whole, counts)
    counts = counts[whole]
    offsets = offsets_of(counts)
    weight = np.exp(support.logprobs[member])
    total = np.repeat(reduce_rows(np.add, weight, offsets, 1.0), counts)

    def centre(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = reduce_rows(np.add, weight * values, offsets, 0.0)
        return values - np.repeat(sums, counts) / total

    rows = int(np.count_nonzero(whole))
    return weight, centre(support.logprobs[member]), centre(on_mask[member]), rows


def _diagnose(tokens: _Tokens, analysis: Analysis) -> tuple[Diagnosis, str]:
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


def _is_noise(summary: dict[str, Any]) -> bool:
    offset, error = summary["log_ratio"]["mean"], summary["log_ratio"]["standard_error"]
    return bool(
        abs(offset) <= max(NOISE_OFFSET, _ERRORS * error)
        and summary["ratio"]["share_outside"] <= NOISE_SHARE_OUTSIDE
        and summary["k3"] <= NOISE_K3
    )


def _over_vocabulary(tokens: _Tokens) -> str | None:
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
