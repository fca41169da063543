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

from app.replay.block_verification import explain_blocks
from app.replay.contest import Contest, Stream, contest
from app.replay.evidence import Choice, Evidence, ReplayOptions
from app.replay.speculation import Explained, explain_rows
from app.replay.support import Support
from app.replay.tolerances import draw_tolerance


class Outcome(IntEnum):
    """What the repeated draw says of a row."""

    EXACT = 0
    MISMATCH = 1
    UNDECIDABLE = 2
    NOT_REPLAYED = 3


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
    SYNTHETIC = "not_reproducible:synthetic_acceptance"
    FLY = "not_reproducible:fly_acceptance"
    BLOCK = "not_reproducible:block_verification"
    PROBABILISTIC_DRAFTS = "not_reproducible:probabilistic_drafts"
    SPECULATION_NOT_DECLARED = "speculation_not_declared"


_REASONS = tuple(Reason)
_BY_METHOD = {"synthetic": Reason.SYNTHETIC, "fly": Reason.FLY}
# These put tokens where no draw from the row would.
_FORCING = (Reason.TRACE_REPLAY, Reason.INFINITE_LOGIT_BIAS, Reason.SYNTHETIC)
# From here on the step in a block goes into the uniform that decides (`gumbel.py::spec_step_seed`).
_SALTED_BLOCKS = Version("0.33")
# So many mismatches, all explained by speculation, are no accident: one is explained by chance
# about every other time.
_UNDECLARED_ROWS = 12
# The runner-up of a draw loses by an exponentially distributed gap, half of the time by more than
# 0.7. Where half are below this, logprobs are a little off instead.
_UNDECLARED_GAP = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The draw of each of n rows.

    Attributes:
        outcomes: `Outcome` values, (n,) int8.
        reasons: indices into `Reason`'s members, (n,) int8.
        gap: the sampled id's sum of logprob and noise less the best other's, (n,); negative
            where another id wins, NaN where not drawn.
        tolerance: gap below which a draw decides nothing.
        accepted: exact rows that repeat only as an accepted draft.
        residual: exact rows that repeat only after a rejected draft is taken out.
    """

    outcomes: NDArray[np.int8]
    reasons: NDArray[np.int8]
    gap: NDArray[np.float64]
    tolerance: float
    accepted: int = 0
    residual: int = 0

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
    if evidence.speculated and (reason := _not_verifiable(evidence.options)) is not None:
        return reason
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


def _not_verifiable(options: ReplayOptions) -> Reason | None:
    if (reason := _BY_METHOD.get(options.rejection_sample_method)) is not None:
        return reason
    if options.draft_sample_method == "probabilistic":
        return Reason.PROBABILISTIC_DRAFTS
    blocks = options.rejection_sample_method == "block"
    return Reason.BLOCK if blocks and options.num_speculative_tokens is None else None


def draw_rows(evidence: Evidence, choice: Choice, support: Support) -> Draws:
    """Repeat the draw of every row of a choice."""
    rows = len(choice)
    tolerance = draw_tolerance(evidence.sampling, rows)
    outcomes = np.full(rows, Outcome.UNDECIDABLE, np.int8)
    reasons = np.zeros(rows, np.int8)
    gap = np.full(rows, np.nan)
    accepted = residual = 0
    counts = support.masks.counts
    inside = support.sampled_at >= 0
    stream = stream_of(evidence, choice)
    if isinstance(stream, Reason):
        reasons[:] = _REASONS.index(stream)
    else:
        sums = contest(support, stream)
        gap = np.minimum(sums.known, sums.bounded)
        _decide(outcomes, reasons, sums, support, tolerance)
        if choice.replayed is not None:
            outcomes[~choice.replayed] = Outcome.NOT_REPLAYED
        undeclared = evidence.speculated is None and _looks_speculative(
            gap[outcomes == Outcome.MISMATCH]
        )
        if evidence.speculated or undeclared:
            accepted, residual = _allow_speculation(
                outcomes,
                reasons,
                _explained(evidence, support, sums, stream, tolerance),
                declared=not undeclared,
                # Of blocks, what decided may be drafts that nobody returned.
                unsure=Reason.BLOCK if _in_blocks(evidence) else Reason.GAP_BELOW_TOLERANCE,
            )
    if stream not in _FORCING:
        # No noise is needed to know what is drawn from one member, or never from none.
        outcomes[(counts == 1) & inside] = Outcome.EXACT
        outcomes[(counts > 0) & ~inside] = Outcome.MISMATCH
    empty = counts == 0
    outcomes[empty] = Outcome.UNDECIDABLE
    reasons[empty] = _REASONS.index(Reason.EMPTY_MASK)
    if choice.replayed is not None:
        outcomes[~choice.replayed] = Outcome.NOT_REPLAYED
        gap[~choice.replayed] = np.nan
    return Draws(outcomes, reasons, gap, tolerance, accepted, residual)


def _in_blocks(evidence: Evidence) -> bool:
    return bool(evidence.speculated) and evidence.options.rejection_sample_method == "block"


def _looks_speculative(gaps: NDArray[np.float64]) -> bool:
    """Whether mismatches, by how much they lost, may come of speculation, (k,)."""
    return len(gaps) >= _UNDECLARED_ROWS and bool(np.median(-gaps) > _UNDECLARED_GAP)


def _explained(
    evidence: Evidence, support: Support, sums: Contest, stream: Stream, tolerance: float
) -> Explained:
    drafts = evidence.options.num_speculative_tokens
    if _in_blocks(evidence) and drafts is not None:
        return explain_blocks(
            support,
            sums,
            stream,
            tolerance,
            drafts=drafts,
            salted=Version(evidence.version.base_version) >= _SALTED_BLOCKS,
        )
    return explain_rows(support, sums, stream, tolerance)


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


def _allow_speculation(
    outcomes: NDArray[np.int8],
    reasons: NDArray[np.int8],
    explained: Explained,
    *,
    declared: bool,
    unsure: Reason,
) -> tuple[int, int]:
    """Change what a speculating server would also have drawn; gives how many rows of each way."""
    lost = outcomes == Outcome.MISMATCH
    if not declared:
        if explained.possible[lost].all():
            outcomes[lost] = Outcome.UNDECIDABLE
            reasons[lost] = _REASONS.index(Reason.SPECULATION_NOT_DECLARED)
        return 0, 0
    undecided = outcomes == Outcome.UNDECIDABLE
    accepted = (lost | undecided) & explained.accepted
    residual = (lost | undecided) & explained.residual & ~accepted
    outcomes[accepted | residual] = Outcome.EXACT
    near = lost & ~accepted & ~residual & explained.possible
    outcomes[near] = Outcome.UNDECIDABLE
    reasons[near] = _REASONS.index(unsure)
    return int(np.count_nonzero(accepted)), int(np.count_nonzero(residual))
