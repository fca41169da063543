"""What a caller asks of a replay beyond checks and draws."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

# One honest report in a million is called inconsistent by chance.
FALSE_ALARM_RATE = 1e-6

# Fresh draws of one report: about 8 MB of JSON, and two seconds of one core.
RETURNED_AT_MOST = 1_000_000
DRAWN_AT_MOST = 10_000_000


class Normalisation(StrEnum):
    """Over what a trainer's probabilities sum to one."""

    MASK = "mask"
    VOCABULARY = "vocabulary"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """Fresh draws to compare with.

    Attributes:
        draws: for each row, at least 1.
        seed: of their generator, 0 to 2**64 - 1.
        ids: whether the drawn ids are returned.
    """

    draws: int
    seed: int = 0
    ids: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainerLogprobs:
    """A trainer's logprobs for one choice of n rows with m mask members.

    Attributes:
        sampled: of the sampled tokens, (n,); NaN where not given or only on the mask.
        on_mask: of `choice.masks.values`, (m,), NaN where not given; None if not given at all.
    """

    sampled: NDArray[np.float64]
    on_mask: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """What to do besides checks and draws.

    Attributes:
        statistics: whether to test draws against their rows; None for where the seeded draw
            leaves rows undecided.
        false_alarm_rate: of the statistics, for one report.
        resample: fresh draws to make.
        trainer: a trainer's logprobs by choice, in order; empty without.
        trainer_normalisation: what the trainer says it does.
        trainer_band: importance ratios that need no remark.
    """

    statistics: bool | None = None
    false_alarm_rate: float = FALSE_ALARM_RATE
    resample: Resampling | None = None
    trainer: tuple[TrainerLogprobs, ...] = ()
    trainer_normalisation: Normalisation = Normalisation.UNKNOWN
    trainer_band: tuple[float, float] = (0.9, 1.1)
