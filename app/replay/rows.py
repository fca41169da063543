"""The seeded draw of each row, repeated, and what it proves.

vLLM takes `argmax(logit + noise)` over the mask (`gumbel.py::gumbel_sample`). A row's logprobs
are its logits less a constant, so they give the same argmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from app.catalogue.semantics import DrawGenerator
from app.replay.draw import gumbel_noise_of_rows
from app.replay.evidence import Choice, Evidence
from app.replay.ragged import reduce_rows
from app.replay.support import Support
from app.replay.tolerances import draw_tolerance


class Outcome(IntEnum):
    """What the repeated draw says of a row."""

    EXACT = 0
    MISMATCH = 1
    UNDECIDABLE = 2


class Reason(StrEnum):
    """Why a row is undecidable."""

    NONE = ""
    NO_SEED = "no_seed"
    NO_PROMPT_LENGTH = "no_prompt_length"
    NO_LOGPROBS = "no_logprobs"
    MASK_NOT_COVERED = "mask_not_covered"
    GAP_BELOW_TOLERANCE = "gap_below_tolerance"
    EMPTY_MASK = "empty_mask"
    GREEDY = "greedy"
    WATERMARK = "not_reproducible:watermark"
    TRACE_REPLAY = "not_reproducible:trace_replay"
    INFINITE_LOGIT_BIAS = "not_reproducible:infinite_logit_bias"
    SPECULATIVE_DECODING = "not_reproducible:speculative_decoding"


_REASONS = tuple(Reason)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The draw of each of n rows.

    Attributes:
        outcomes: `Outcome` values, (n,) int8.
        reasons: indices into `Reason`'s members, (n,) int8.
        gap: the sampled id's sum of logprob and noise less the best other's, (n,); negative
            where another id wins, NaN where not drawn.
        tolerance: gap below which a draw decides nothing.
    """

    outcomes: NDArray[np.int8]
    reasons: NDArray[np.int8]
    gap: NDArray[np.float64]
    tolerance: float

    def count(self, outcome: Outcome) -> int:
        """How many rows have this outcome."""
        return int(np.count_nonzero(self.outcomes == outcome))

    def reason_counts(self) -> dict[str, int]:
        """Undecidable rows by reason."""
        undecidable = self.reasons[self.outcomes == Outcome.UNDECIDABLE]
        counts = np.bincount(undecidable, minlength=len(_REASONS))
        return {
            reason.value: int(count)
            for reason, count in zip(_REASONS, counts, strict=True)
            if count
        }


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
    """The sums of each row: the sampled id against those known and those only bounded, (n,)."""

    known: NDArray[np.float64]
    bounded: NDArray[np.float64]
    sums: NDArray[np.float64]


def stream_of(evidence: Evidence, choice: Choice) -> Stream | Reason:
    """Give the noise stream of a choice, or why it is unknown."""
    sampling = evidence.sampling
    release = Version(evidence.version.base_version)
    if sampling.greedy:
        return Reason.GREEDY
    if sampling.forced_tokens and release >= Version("0.29"):
        return Reason.TRACE_REPLAY
    if sampling.infinite_bias:
        return Reason.INFINITE_LOGIT_BIAS
    if evidence.options.watermark and sampling.watermarking and release >= Version("0.30"):
        return Reason.WATERMARK
    if evidence.speculated and evidence.semantics.speculative_replay:
        return Reason.SPECULATIVE_DECODING
    if sampling.seed is None:
        return Reason.NO_SEED
    if evidence.prompt_length is None:
        return Reason.NO_PROMPT_LENGTH
    return Stream(
        generator=evidence.semantics.draw,
        # `v1/engine/parallel_sampling.py`: child i of n > 1 has the seed plus i.
        seed=sampling.seed + choice.index,
        first_position=evidence.prompt_length - 1,
        fp64=evidence.options.use_fp64_gumbel,
    )


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
    known = np.where(support.exact, others, -np.inf)
    bounded = np.where(support.exact, -np.inf, others)
    with np.errstate(invalid="ignore"):
        return Contest(
            own - reduce_rows(np.maximum, known, masks.offsets, -np.inf),
            own - reduce_rows(np.maximum, bounded, masks.offsets, -np.inf),
            sums,
        )


def draw_rows(evidence: Evidence, choice: Choice, support: Support) -> Draws:
    """Repeat the draw of every row of a choice."""
    rows = len(choice)
    tolerance = draw_tolerance(evidence.sampling, rows)
    outcomes = np.full(rows, Outcome.UNDECIDABLE, np.int8)
    reasons = np.zeros(rows, np.int8)
    gap = np.full(rows, np.nan)
    counts = support.masks.counts
    inside = support.sampled_at >= 0
    stream = stream_of(evidence, choice)
    if isinstance(stream, Reason):
        reasons[:] = _REASONS.index(stream)
    else:
        sums = contest(support, stream)
        gap = np.minimum(sums.known, sums.bounded)
        _decide(outcomes, reasons, sums, support, tolerance)
    if stream is not Reason.TRACE_REPLAY and stream is not Reason.INFINITE_LOGIT_BIAS:
        # No noise is needed to know what is drawn from one member, or never from none.
        outcomes[(counts == 1) & inside] = Outcome.EXACT
        outcomes[(counts > 0) & ~inside] = Outcome.MISMATCH
    empty = counts == 0
    outcomes[empty] = Outcome.UNDECIDABLE
    reasons[empty] = _REASONS.index(Reason.EMPTY_MASK)
    return Draws(outcomes, reasons, gap, tolerance)


def winner(support: Support, sums: NDArray[np.float64], row: int) -> int:
    """Give the id that the repeated draw gives for a row; equal sums go to the lowest."""
    start = int(support.masks.offsets[row])
    return int(support.masks.row(row)[np.argmax(sums[start : start + len(support.masks.row(row))])])


def _decide(
    outcomes: NDArray[np.int8],
    reasons: NDArray[np.int8],
    sums: Contest,
    support: Support,
    tolerance: float,
) -> None:
    own = np.zeros(len(outcomes), np.bool_)
    inside = support.sampled_at >= 0
    own[inside] = support.exact[support.sampled_at[inside]]
    # A sampled id whose logprob is only bounded can lose for certain, but not win.
    lost = sums.known < -tolerance
    won = own & (sums.known > tolerance) & (sums.bounded > tolerance)
    close = own & (np.abs(sums.known) <= tolerance)
    outcomes[lost] = Outcome.MISMATCH
    outcomes[won] = Outcome.EXACT
    reasons[:] = _REASONS.index(Reason.MASK_NOT_COVERED)
    reasons[close] = _REASONS.index(Reason.GAP_BELOW_TOLERANCE)
    if support.candidates is None:
        reasons[:] = _REASONS.index(Reason.NO_LOGPROBS)
