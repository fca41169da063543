"""A trainer's logprobs against the sampler's: importance ratios as they are, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.replay.checks.result import Subject
from app.replay.evidence import LOGPROB_FLOOR
from app.replay.options import Analysis, TrainerLogprobs
from app.replay.ragged import offsets_of, reduce_rows
from app.replay.statistics.declarations import TRAINER
from app.replay.support import Support
from app.replay.trainer_diagnosis import Diagnosis, Tokens, diagnose, ratios
from app.verdict.finding import Finding
from app.verdict.location import Location

# Masks of (nearly) equal logprobs have no slope.
_LEAST_SPREAD = 1e-9
# Fewer rows say nothing of a slope.
_ENOUGH = 8


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

    def as_text(self) -> str:
        """Render in one line; a finding has the explanation."""
        words = [self.diagnosis.value, f"{self.body['tokens']} tokens"]
        if (ratio := self.body["ratio"]) is not None:
            words += [
                f"ratio mean {ratio['mean']:.4g}, median {ratio['median']:.4g}",
                f"{ratio['min']:.3g} to {ratio['max']:.3g}",
                f"{ratio['share_outside']:.1%} outside {ratio['band']}",
                f"k3 {self.body['k3']:.2g}",
            ]
        return ", ".join(words)

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
    tokens = Tokens(
        log_ratio=(trainer - sampler)[used],
        log_mass=np.concatenate([part.log_mass for part in parts])[used],
        singleton=np.concatenate([part.singleton for part in parts])[used],
        slope=slope,
        slope_error=slope_error,
    )
    diagnosis, text = diagnose(tokens, analysis)
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
    if subject.choice.replayed is not None:
        # What the engine did not sample, it gave no probability to compare with.
        sampler[~subject.choice.replayed] = np.nan
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
