"""Letting the members of each mask compete with a stream of noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.catalogue.semantics import DrawGenerator
from app.replay.draw import gumbel_noise_of_rows
from app.replay.ragged import reduce_rows
from app.replay.support import Support


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Which noise a choice was drawn with.

    Attributes:
        generator: of the version.
        seed: of the choice, its index added.
        first_position: of the first row.
        fp64: whether noise is in double precision.
    """

    generator: DrawGenerator
    seed: int
    first_position: int
    fp64: bool


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """The sums of logprob and noise.

    Attributes:
        known: of the sampled id, less the best of the others whose logprob is known, (n,).
        bounded: the same against those whose logprob is only bounded, (n,).
        sums: of every member, or the most it can be, (m,).
    """

    known: NDArray[np.float64]
    bounded: NDArray[np.float64]
    sums: NDArray[np.float64]


def contest(support: Support, stream: Stream) -> Contest:
    """Let the members of each mask compete with the noise of `stream`."""
    masks = support.masks
    noise = gumbel_noise_of_rows(
        stream.generator,
        seed=stream.seed,
        positions=np.arange(len(masks), dtype=np.int64) + stream.first_position,
        token_ids=masks.values,
        offsets=masks.offsets,
        fp64=stream.fp64,
    )
    sums = support.upper + noise
    others = sums.copy()
    member = support.sampled_at >= 0
    own = np.full(len(masks), -np.inf)
    own[member] = sums[support.sampled_at[member]]
    others[support.sampled_at[member]] = -np.inf
    with np.errstate(invalid="ignore"):
        if support.exact.all():
            known = own - reduce_rows(np.maximum, others, masks.offsets, -np.inf)
            return Contest(known, np.full(len(masks), np.inf), sums)
        known = np.where(support.exact, others, -np.inf)
        bounded = np.where(support.exact, -np.inf, others)
        return Contest(
            own - reduce_rows(np.maximum, known, masks.offsets, -np.inf),
            own - reduce_rows(np.maximum, bounded, masks.offsets, -np.inf),
            sums,
        )


def winner(support: Support, sums: NDArray[np.float64], row: int) -> int:
    """Give the id that the repeated draw gives for a row; equal sums go to the lowest."""
    start = int(support.masks.offsets[row])
    return int(support.masks.row(row)[np.argmax(sums[start : start + len(support.masks.row(row))])])
