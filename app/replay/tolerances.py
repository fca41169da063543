"""How close is close enough, each with its reason.

All follow from fp32: the engine adds fp32 noise to fp32 logits and returns fp32 logprobs, so a
value near the logit scale L carries an error of up to one unit in the last place of L.
"""

from __future__ import annotations

import numpy as np

from app.replay.wire.sampling_params import SamplingRequest

# Logits of language models stay below this by a wide margin, so the tolerances err on the safe
# side: a larger scale only makes a few more near-ties undecidable.
ASSUMED_LOGIT = 128.0

# `ln`, `log1p` and the series may each differ from the device's in the last place; noise is at
# most 23, whose last place is 2e-6.
NOISE_ERROR = 1e-5

# log-softmax sums up to a vocabulary of fp32 terms; measured sums are within 1e-5 of one.
# float16 or rounded-to-three-digits logprobs are off by more than this.
NORMALISATION_ERROR = 1e-4

# Equal logits give equal fp32 logprobs; the slack is for evidence stored with six decimals.
TIE = 2e-6

# The same number arrives twice, as the sampled logprob and in the candidate list; the slack is
# for evidence stored with six decimals.
SAME_LOGPROB = 2e-6


def logit_scale(sampling: SamplingRequest, rows: int) -> float:
    """Bound the size of logits that still compete for a draw, after temperature.

    Penalties that lower a logit only take it out of the competition; those that raise it, and
    biases, add to the scale.
    """
    raised = max(0.0, -sampling.presence_penalty) + rows * max(0.0, -sampling.frequency_penalty)
    factor = max(sampling.repetition_penalty, 1.0 / max(sampling.repetition_penalty, 1e-3))
    scale = ASSUMED_LOGIT * factor + sampling.largest_bias + raised
    return scale / max(sampling.temperature, 1e-2)


def last_place(scale: float) -> float:
    """One unit in the last place of an fp32 number of this size."""
    return float(np.spacing(np.float32(min(scale, 1e30))))


def draw_tolerance(sampling: SamplingRequest, rows: int) -> float:
    """Gap between the two best sums below which a draw is undecidable.

    The two rows' sums are rounded once in the engine and their logprobs once on the way.
    """
    return NOISE_ERROR + 2.0 * last_place(logit_scale(sampling, rows))


def normalisation_tolerance(sampling: SamplingRequest, rows: int) -> float:
    """Distance from one within which probabilities over a mask count as summing to one.

    A rounding of the log of the normaliser, at the logit scale, multiplies every probability.
    """
    return NORMALISATION_ERROR + 2.0 * last_place(logit_scale(sampling, rows))
