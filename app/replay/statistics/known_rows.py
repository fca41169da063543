"""The rows whose distribution is known, independent of which token was drawn.

A row counts only by what does not depend on its draw, or selection would look like a finding.
Candidate lists do depend on it: the sampled token is always listed. So where a mask may be wider
than its list, a row keeps only the tokens that every draw would have listed, and all others are
one outcome, "another", whose probability is what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from app.replay.evidence import Choice, Evidence
from app.replay.ragged import offsets_of, reduce_rows
from app.replay.support import Support
from app.replay.tolerances import TIE, normalisation_tolerance

# "another" is known as well as the row's sum is; see `tolerances.NORMALISATION_ERROR`.
_LEAST_REST = 1e-2
# Outcomes worked on at a time, so that temporaries stay in the processor's cache.
_BLOCK = 1 << 12


class LeftOut(StrEnum):
    """Why a row is not tested."""

    SINGLETON = "singleton"
    NO_LOGPROBS = "no_logprobs"
    NOT_COVERED = "mask_not_covered"
    NOT_DRAWN_FROM_ROW = "not_drawn_from_row"
    NOT_REPLAYED = "not_replayed"


@dataclass(frozen=True, slots=True, eq=False)
class KnownRows:
    """n rows with m outcomes in all; within a row the most likely first, "another" last.

    Attributes:
        logprobs: of each outcome, (m,), normalised in each row.
        offsets: of the rows, (n + 1,).
        drawn_at: the outcome of each row, flat, (n,).
        other_last: rows whose last outcome is "another", (n,).
        left_out: how many rows are not among them, by `LeftOut`.
    """

    logprobs: NDArray[np.float64]
    offsets: NDArray[np.int64]
    drawn_at: NDArray[np.int64]
    other_last: NDArray[np.bool_]
    left_out: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.drawn_at)

    def blocks(self) -> Iterator[KnownRows]:
        """Cut into consecutive parts of bounded size, whole rows each."""
        start = 0
        while start < len(self):
            limit = self.offsets[start] + _BLOCK
            stop = max(int(np.searchsorted(self.offsets, limit, side="right")) - 1, start + 1)
            first, last = int(self.offsets[start]), int(self.offsets[stop])
            yield KnownRows(
                self.logprobs[first:last],
                self.offsets[start : stop + 1] - first,
                self.drawn_at[start:stop] - first,
                self.other_last[start:stop],
                {},
            )
            start = stop


def known_rows(evidence: Evidence, choice: Choice, support: Support) -> KnownRows:
    """Take the rows of one choice whose distribution is known and not certain."""
    masks, counts = support.masks, support.masks.counts
    inside = support.sampled_at >= 0
    drawn = inside.copy()
    drawn[inside] = support.exact[support.sampled_at[inside]]
    replayed = np.ones(len(counts), np.bool_) if choice.replayed is None else choice.replayed
    several = counts > 1
    if support.replayed is not None:
        several &= support.replayed
    whole, listed = _coverage(evidence, support)
    whole &= drawn & several & replayed
    partly = ~whole & drawn & several & replayed & (listed > 0)

    kept = support.exact & np.repeat(whole | partly, counts)
    row_of = masks.row_of
    order = np.flatnonzero(kept)
    order = order[np.lexsort((-support.logprobs[order], row_of[order]))]
    sizes = np.bincount(row_of[order], minlength=len(counts))
    place = _within(sizes)
    if partly.any():
        rest = max(_LEAST_REST, 100.0 * normalisation_tolerance(evidence.sampling, len(counts)))
        known = _told_apart(support.logprobs[order], sizes, partly, listed, rest)
        order = order[known]
        sizes = np.bincount(row_of[order], minlength=len(counts))
        place = _within(sizes)
    # Rows that list fewer than they should, or only ties, have no outcome but "another".
    outcomes = sizes + partly
    informative = outcomes > 1
    used = informative[row_of[order]]
    order, place = order[used], place[used]
    outcomes = np.where(informative, outcomes, 0)
    offsets = offsets_of(outcomes)
    at = offsets[row_of[order]] + place
    logprobs = np.full(int(offsets[-1]), -np.inf)
    logprobs[at] = support.logprobs[order]
    place_of = np.full(len(masks.values), -1, np.int64)
    place_of[order] = at
    _fill_rest(logprobs, offsets, partly & informative)
    _normalise(logprobs, offsets)

    rows = np.flatnonzero(informative)
    drawn_at = place_of[support.sampled_at[rows]]
    # Drawn, but not one of those that are always listed.
    drawn_at = np.where(drawn_at < 0, offsets[rows + 1] - 1, drawn_at)
    return KnownRows(
        logprobs=logprobs,
        offsets=offsets_of(outcomes[rows]),
        drawn_at=drawn_at,
        other_last=partly[rows],
        left_out=_left_out(
            ~informative,
            {
                LeftOut.NOT_REPLAYED: ~replayed,
                LeftOut.NOT_DRAWN_FROM_ROW: ~inside,
                # Or several of which all but one have no probability.
                LeftOut.SINGLETON: ~several | whole,
                LeftOut.NO_LOGPROBS: ~drawn,
                LeftOut.NOT_COVERED: several,
            },
        ),
    )


def join(parts: Iterable[KnownRows]) -> KnownRows:
    """Put the rows of several choices one after the other."""
    every = list(parts)
    starts = offsets_of(np.array([len(part.logprobs) for part in every], np.int64))
    left_out: Counter[str] = Counter()
    for part in every:
        left_out.update(part.left_out)
    return KnownRows(
        logprobs=np.concatenate([part.logprobs for part in every]),
        offsets=offsets_of(np.concatenate([np.diff(part.offsets) for part in every])),
        drawn_at=np.concatenate(
            [part.drawn_at + start for part, start in zip(every, starts[:-1], strict=True)]
        ),
        other_last=np.concatenate([part.other_last for part in every]),
        left_out=dict(left_out),
    )


def _coverage(evidence: Evidence, support: Support) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Rows that any draw would have covered, and how many tokens any draw would have listed."""
    counts, candidates = support.masks.counts, support.candidates
    none = np.zeros(len(counts), np.int64)
    if candidates is None:
        return np.zeros(len(counts), np.bool_), none
    asked = evidence.sampling.logprobs
    if candidates.on_mask or (asked is not None and asked < 0):
        return support.covered.copy(), none
    if not support.ranked:
        return np.zeros(len(counts), np.bool_), none
    if not asked:
        # Not in the request as given: the longest list may have the sampled token in addition.
        asked = max(int(candidates.ids.counts.max(initial=0)) - 1, 0)
    # Up to 0.32 a sampled token that is not among them displaces the last.
    listed = asked - 1 if evidence.semantics.logprobs_cut_to_k else asked
    return support.covered & (counts <= asked), np.full(len(counts), max(listed, 0), np.int64)


def _told_apart(
    logprobs: NDArray[np.float64],
    sizes: NDArray[np.int64],
    partly: NDArray[np.bool_],
    listed: NDArray[np.int64],
    rest: float,
) -> NDArray[np.bool_]:
    """Which of the sorted outcomes to keep: of partly covered rows, those above the last place.

    Those that tie with the last place are dropped too, since which of them is listed may depend
    on the draw, and so are those after which less than `rest` would be left for "another".
    """
    offsets = offsets_of(sizes)
    starts = offsets[:-1]
    enough = partly & (sizes >= listed)
    last = np.full(len(sizes), np.inf)
    last[enough] = logprobs[(starts + listed - 1)[enough]] + TIE
    total = np.concatenate([[0.0], np.cumsum(np.exp(logprobs))])
    so_far = total[1:] - np.repeat(total[starts], sizes)
    above = (logprobs > np.repeat(last, sizes)) & (so_far <= 1.0 - rest)
    kept: NDArray[np.bool_] = np.repeat(~partly, sizes) | above
    return kept


def _fill_rest(
    logprobs: NDArray[np.float64], offsets: NDArray[np.int64], partly: NDArray[np.bool_]
) -> None:
    """Give "another", the last outcome of a partly covered row, what the others leave."""
    if partly.any():
        known = reduce_rows(np.add, np.exp(logprobs), offsets, 0.0)
        logprobs[(offsets[1:] - 1)[partly]] = np.log1p(-known[partly])


def _normalise(logprobs: NDArray[np.float64], offsets: NDArray[np.int64]) -> None:
    best = reduce_rows(np.maximum, logprobs, offsets, 0.0)
    counts = np.diff(offsets)
    logprobs -= np.repeat(best, counts)
    total = reduce_rows(np.add, np.exp(logprobs), offsets, 1.0)
    logprobs -= np.repeat(np.log(total), counts)


def _within(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each outcome in its row, 0 on."""
    offsets = offsets_of(sizes)
    return np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], sizes)


def _left_out(
    rest: NDArray[np.bool_], causes: Mapping[LeftOut, NDArray[np.bool_]]
) -> dict[str, int]:
    """Count rows by the first cause that holds."""
    counts = {}
    for cause, rows in causes.items():
        if n := int(np.count_nonzero(rest & rows)):
            counts[cause.value] = n
        rest = rest & ~rows
    return counts
