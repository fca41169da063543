"""The mask of each row joined with the logprobs that came with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.replay.evidence import LOGPROB_FLOOR, Candidates, Choice
from app.replay.ragged import Ragged, reduce_rows, row_keys
from app.replay.tolerances import NORMALISATION_ERROR

_LARGEST_ID = 2**32 - 1


@dataclass(frozen=True, eq=False)
class Support:
    """What is known of each row's distribution.

    `n` rows have `m` mask members and `c` candidates in all.

    Attributes:
        masks: the members; ids outside 32 bits are clipped, which a check has reported.
        logprobs: of each member, (m,); NaN where not given, `LOGPROB_FLOOR` where at most that.
        sampled_at: flat place of the sampled id among the members, (n,); -1 if it is none.
        candidate_at: flat place of each candidate among the members, (c,); -1 if it is none.
        candidates: as they came, or None.
        ranked: whether candidates are the most likely tokens (not ids that were asked for).
        replayed: rows whose token the engine sampled, (n,); None for all.
        candidate_order: what sorts candidates by row and id, equal ones as they came, (c,); empty
            where they are the mask's own ids.
    """

    masks: Ragged
    logprobs: NDArray[np.float64]
    sampled_at: NDArray[np.int64]
    candidate_at: NDArray[np.int64]
    candidates: Candidates | None
    ranked: bool
    replayed: NDArray[np.bool_] | None = None
    candidate_order: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def absent(self) -> NDArray[np.bool_]:
        """Members whose logprob was not given, (m,)."""
        absent: NDArray[np.bool_] = np.isnan(self.logprobs)
        return absent

    @cached_property
    def exact(self) -> NDArray[np.bool_]:
        """Members whose logprob is known, not only bounded, (m,)."""
        known: NDArray[np.bool_] = self.logprobs > LOGPROB_FLOOR
        return known

    @cached_property
    def covered(self) -> NDArray[np.bool_]:
        """Rows all of whose members have a logprob, (n,)."""
        covered: NDArray[np.bool_] = self.masks.counts > 0
        if self.absent.any():
            missing = reduce_rows(np.add, self.absent.astype(np.float64), self.masks.offsets, 0.0)
            covered &= missing == 0
        return covered

    @cached_property
    def mass(self) -> NDArray[np.float64]:
        """Probability of the members whose logprob was given, (n,)."""
        known = np.exp(np.where(self.exact, self.logprobs, -np.inf))
        return reduce_rows(np.add, known, self.masks.offsets, 0.0)

    @cached_property
    def best(self) -> NDArray[np.float64]:
        """The largest logprob given in each row, (n,); -inf if none."""
        known = np.where(self.absent, -np.inf, self.logprobs)
        return reduce_rows(np.maximum, known, self.masks.offsets, -np.inf)

    @cached_property
    def least(self) -> NDArray[np.float64]:
        """The smallest logprob given in each row, (n,); inf if none."""
        known = np.where(self.absent, np.inf, self.logprobs)
        return reduce_rows(np.minimum, known, self.masks.offsets, np.inf)

    @cached_property
    def bound(self) -> NDArray[np.float64]:
        """The most that a member without a logprob can have, (n,).

        It holds no more than the mass that is left, and no more than the least likely of the
        candidates, which are the most likely tokens and possibly the sampled one.
        """
        left = np.log(np.maximum(1.0 - self.mass, 0.0) + NORMALISATION_ERROR)
        if self.candidates is None or not self.ranked:
            return left
        ids = self.candidates.ids
        others = self.candidates.logprobs.copy()
        sampled = ids.values == np.repeat(self.candidates.named, ids.counts)
        others[sampled] = np.inf
        # A candidate that was not given (NaN) may be likelier than the rest: no bound then.
        return np.fmin(left, reduce_rows(np.minimum, others, ids.offsets, np.inf))

    @cached_property
    def upper(self) -> NDArray[np.float64]:
        """The logprob of each member, or the most it can be, (m,)."""
        if not self.absent.any():
            return self.logprobs
        return np.where(self.absent, np.repeat(self.bound, self.masks.counts), self.logprobs)


def support_of(choice: Choice, *, ranked: bool) -> Support:
    """Join masks and logprobs of one choice by (row, token id).

    `ranked` says whether candidates, unless they are the mask's own ids, are the most likely.
    """
    masks = _clipped(choice.masks)
    keys = masks.keys
    sampled_at = _find(keys, row_keys(np.clip(choice.token_ids, 0, _LARGEST_ID)))
    logprobs = np.full(len(keys), np.nan)
    candidate_at = order = np.empty(0, np.int64)
    candidates = choice.candidates
    if candidates is not None:
        if candidates.on_mask and candidates.ids is choice.masks:
            candidate_at = np.arange(len(keys), dtype=np.int64)
        else:
            candidate_at, order = _join(keys, _clipped(candidates.ids))
        inside = candidate_at >= 0
        logprobs[candidate_at[inside]] = candidates.logprobs[inside]
        # An entry may come without its list of candidates, or with a list that it is not in.
        member = (sampled_at >= 0) & (candidates.named == choice.token_ids)
        place = sampled_at[member]
        logprobs[place] = np.where(
            np.isnan(logprobs[place]), candidates.sampled[member], logprobs[place]
        )
        np.maximum(logprobs, LOGPROB_FLOOR, out=logprobs)
    if candidates is None or candidates.on_mask:
        ranked = False
    return Support(
        masks, logprobs, sampled_at, candidate_at, candidates, ranked, choice.replayed, order
    )


def _join(
    members: NDArray[np.int64], candidates: Ragged
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find each candidate among the members' sorted keys; gives also what sorts candidates."""
    keys = candidates.keys
    order = candidates.sorting_order()
    ordered = keys[order]
    repeated = bool(np.any(ordered[1:] == ordered[:-1]) or np.any(members[1:] == members[:-1]))
    if repeated or not len(ordered):
        return _find(members, keys), order
    # Members are fewer and sorted, so that looking for them is faster than the other way round.
    at = _find(ordered, members)
    found = np.flatnonzero(at >= 0)
    place = np.full(len(keys), -1, np.int64)
    place[order[at[found]]] = found
    return place, order


def _clipped(rows: Ragged) -> Ragged:
    return Ragged(np.clip(rows.values, 0, _LARGEST_ID), rows.offsets)


def _find(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    place = np.searchsorted(keys, wanted)
    np.minimum(place, len(keys) - 1, out=place)
    return np.where(keys[place] == wanted, place, -1)
