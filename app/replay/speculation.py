"""Draws under speculative decoding with one-hot drafts (0.32 on).

`v1/worker/gpu/spec_decode/rejection_sampler_utils.py`, method `standard`: a draft d is accepted
if ln p(d) > ln u with u from (seed, position); at the first rejection the token is drawn, with
the plain noise, from the row without d; after the last acceptance it is drawn plainly. Drafts
are not returned, so a token is explained if some draft explains it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.replay.contest import Contest, Stream
from app.replay.draw import acceptance_uniform
from app.replay.ragged import reduce_rows
from app.replay.support import Support


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """How each row can have come about other than by the plain draw, (n,) each.

    Attributes:
        accepted: it would have been accepted as a draft.
        residual: it wins once the plain winner is taken out as a rejected draft.
        possible: within the tolerance one of these, or the plain draw, may hold.
    """

    accepted: NDArray[np.bool_]
    residual: NDArray[np.bool_]
    possible: NDArray[np.bool_]


def explain_rows(support: Support, sums: Contest, stream: Stream, tolerance: float) -> Explained:
    """Say for each row which ways of speculation give its token."""
    masks = support.masks
    rows = len(masks)
    positions = np.arange(rows, dtype=np.int64) + stream.first_position
    log_u = np.log(acceptance_uniform(stream.seed, positions).astype(np.float64))
    inside = support.sampled_at >= 0
    own_logprob = np.full(rows, -np.inf)
    own_logprob[inside] = support.upper[support.sampled_at[inside]]
    own_sum = np.full(rows, -np.inf)
    own_sum[inside] = sums.sums[support.sampled_at[inside]]

    others = np.ones(len(masks.values), np.bool_)
    others[support.sampled_at[inside]] = False

    def rivals(members: NDArray[np.bool_], margin: float) -> NDArray[np.float64]:
        """How many of these members pass the sampled id's sum plus `margin`."""
        ahead = members & (sums.sums > np.repeat(own_sum + margin, masks.counts))
        return reduce_rows(np.add, ahead.astype(np.float64), masks.offsets, 0.0)

    best = reduce_rows(np.maximum, np.where(others, sums.sums, -np.inf), masks.offsets, -np.inf)
    is_best = others & (sums.sums == np.repeat(best, masks.counts))
    top = reduce_rows(np.maximum, np.where(is_best, support.upper, -np.inf), masks.offsets, -np.inf)
    known = inside & support.covered
    accepted = known & (own_logprob > log_u + tolerance)
    residual = known & (rivals(others, -tolerance) == 1) & (top <= log_u - tolerance)
    # Only members whose logprob is known can exclude a way.
    second = rivals(others & support.exact, tolerance) <= 1
    possible = (
        (sums.known >= -tolerance)
        | (own_logprob >= log_u - tolerance)
        | (second & ((top <= log_u + tolerance) | ~support.covered))
    )
    return Explained(accepted, residual, possible & inside)
