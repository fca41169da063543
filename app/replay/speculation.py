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


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where the sampled id of each row stands among its members, (n,) each.

    Attributes:
        known: rows whose sampled id and all of whose members have a logprob.
        own: the sampled id's logprob, or the most it can be; -inf outside the mask.
        top: logprob of the best other member, or the most it can be.
        won: the sampled id is certainly the plain draw.
        may_have_won: within the tolerance it may be.
        second: certainly just one member beats it.
        may_be_second: within the tolerance at most one member does.
    """

    known: NDArray[np.bool_]
    own: NDArray[np.float64]
    top: NDArray[np.float64]
    won: NDArray[np.bool_]
    may_have_won: NDArray[np.bool_]
    second: NDArray[np.bool_]
    may_be_second: NDArray[np.bool_]


def standing_of(support: Support, sums: Contest, tolerance: float) -> Standing:
    """Say where each sampled id stands in the plain draw."""
    masks = support.masks
    rows = len(masks)
    inside = support.sampled_at >= 0
    own = np.full(rows, -np.inf)
    own[inside] = support.upper[support.sampled_at[inside]]
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
    known = inside & support.covered
    # Rows that are not replayed need no explanation.
    skipped = False if support.replayed is None else ~support.replayed
    return Standing(
        known=known,
        own=own,
        top=reduce_rows(
            np.maximum, np.where(is_best, support.upper, -np.inf), masks.offsets, -np.inf
        ),
        won=(known & (sums.known > tolerance)) | skipped,
        may_have_won=(inside & (sums.known >= -tolerance)) | skipped,
        second=known & (rivals(others, -tolerance) == 1),
        # Only members whose logprob is known can exclude a way.
        may_be_second=inside & (rivals(others & support.exact, tolerance) <= 1),
    )


def explain_rows(support: Support, sums: Contest, stream: Stream, tolerance: float) -> Explained:
    """Say for each row which ways of speculation give its token."""
    at = standing_of(support, sums, tolerance)
    positions = np.arange(len(support.masks), dtype=np.int64) + stream.first_position
    log_u = np.log(acceptance_uniform(stream.seed, positions).astype(np.float64))
    inside = support.sampled_at >= 0
    possible = (
        at.may_have_won
        | (inside & (at.own >= log_u - tolerance))
        | (at.may_be_second & ((at.top <= log_u + tolerance) | ~support.covered))
    )
    return Explained(
        accepted=at.known & (at.own > log_u + tolerance),
        residual=at.second & (at.top <= log_u - tolerance),
        possible=possible,
    )
