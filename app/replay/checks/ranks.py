"""The check of ranks, which logprobs have from 0.32 on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from app.replay import declarations
from app.replay.checks.result import Result, Subject
from app.replay.evidence import LOGPROB_FLOOR, Candidates
from app.replay.tolerances import TIE


def check_ranks(subject: Subject, candidates: Candidates) -> Iterator[Result]:
    """Check that ranks are the places of candidates by logprob.

    A list is the sampled token and then the most likely ones, from which it is left out. So the
    candidate at place j has rank j, or j + 1 where the sampled token comes before it. The sampled
    token's own rank counts the tokens that are no less likely, or is its place among ties.
    """
    ranks = candidates.ranks
    if ranks is None or not subject.support.ranked or not subject.rows:
        return
    ids, logprobs = candidates.ids, candidates.logprobs
    starts, counts = ids.offsets[:-1], ids.counts
    listed = np.flatnonzero(counts > 0)
    first = starts[listed]
    own_rank, own = ranks[first], logprobs[first]
    # Elsewhere the entry is about another token, or somebody has ordered the list anew.
    regular = (own_rank > 0) & (own > LOGPROB_FLOOR)
    regular &= ids.values[first] == candidates.named[listed]
    rising = np.zeros(len(logprobs), np.bool_)
    rising[1:] = logprobs[1:] > logprobs[:-1] + TIE
    rising[first] = False
    rising[(first + 1)[counts[listed] > 1]] = False
    judged, failed = subject.none(), subject.none()
    judged[listed] = regular
    if rising.any():
        judged[ids.row_of[rising]] = False

    # The list falls, so that the token's neighbours by rank say where it stands.
    last = first + counts[listed] - 1
    before, after = np.minimum(first + own_rank - 1, last), np.minimum(first + own_rank, last)
    failed[listed] = ((before > first) & (logprobs[before] < own - TIE)) | (
        (after == first + own_rank) & (logprobs[after] > own + TIE)
    )
    places = np.arange(len(ranks)) - np.repeat(starts, counts)
    own_ranks = np.repeat(own_rank, counts[listed])
    wrong = (ranks != places + (own_ranks <= places)) & (places > 0)
    if wrong.any():
        failed[ids.row_of[wrong]] = True

    def show(row: int) -> dict[str, Any]:
        part = slice(ids.offsets[row], ids.offsets[row + 1])
        return {"ranks": ranks[part][:8].tolist()}

    yield Result(
        check=declarations.CANDIDATE_RANKS,
        failed=failed & judged,
        undecided=~judged,
        message="ranks are not the places of candidates by logprob",
        member="logprobs/content",
        show=show,
    )
