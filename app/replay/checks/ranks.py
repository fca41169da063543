"""The check of ranks, which logprobs have from 0.32 on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from app.replay import declarations
from app.replay.checks.result import Result, Subject
from app.replay.evidence import LOGPROB_FLOOR, Candidates
from app.replay.ragged import reduce_rows
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
    first = ids.offsets[:-1][ids.counts > 0]
    rows = np.flatnonzero(ids.counts > 0)
    own_rank = np.zeros(subject.rows, np.int64)
    own_rank[rows] = ranks[first]
    own = np.full(subject.rows, np.nan)
    own[rows] = logprobs[first]
    # Elsewhere the entry is about another token, or somebody has ordered the list anew.
    regular = (ids.counts > 0) & (own_rank > 0) & (own > LOGPROB_FLOOR)
    regular[rows] &= ids.values[first] == candidates.named[rows]
    falling = np.ones(len(logprobs), np.bool_)
    falling[1:] = ~(logprobs[1:] > logprobs[:-1] + TIE)
    for skipped in (0, 1):
        starts = ids.offsets[:-1] + skipped
        falling[starts[starts < ids.offsets[1:]]] = True
    regular &= reduce_rows(np.minimum, falling.astype(np.float64), ids.offsets, 1.0) > 0

    place = np.arange(len(ranks)) - np.repeat(ids.offsets[:-1], ids.counts)
    expected = place + (np.repeat(own_rank, ids.counts) <= place)
    wrong = (ranks != expected) & (place > 0)
    failed = reduce_rows(np.maximum, wrong.astype(np.float64), ids.offsets, 0.0) > 0

    level = np.repeat(own, ids.counts)
    likelier = reduce_rows(np.add, (logprobs > level + TIE).astype(np.float64), ids.offsets, 0.0)
    failed |= own_rank <= likelier
    masks = subject.support.masks
    level = np.repeat(own, masks.counts)
    no_less = reduce_rows(
        np.add, (subject.support.logprobs >= level - TIE).astype(np.float64), masks.offsets, 0.0
    )
    failed |= subject.support.covered & (own_rank > no_less)

    def show(row: int) -> dict[str, Any]:
        part = slice(ids.offsets[row], ids.offsets[row + 1])
        return {"ranks": ranks[part][:8].tolist()}

    yield Result(
        check=declarations.CANDIDATE_RANKS,
        failed=failed & regular,
        undecided=~regular,
        message="ranks are not the places of candidates by logprob",
        member="logprobs/content",
        show=show,
    )
