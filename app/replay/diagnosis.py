"""Why draws do not repeat: what else would explain the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.catalogue.semantics import DrawGenerator
from app.replay.contest import Stream, contest
from app.replay.evidence import Choice, Evidence
from app.replay.ragged import Ragged
from app.replay.rows import Reason, stream_of
from app.replay.speculation import explain_rows
from app.replay.support import Support
from app.replay.tolerances import TIE, draw_tolerance

# Rows that are tried again; a wrong explanation fails on about half of them.
_TRIED_ROWS = 256
# Fewer decidable rows than this would let chance explain them.
_ENOUGH_ROWS = 6
# Choices of the same request whose seeds are tried.
_TRIED_CHOICES = 64
_GENERATORS = {
    DrawGenerator.PHILOX: "the Philox draw of vLLM up to 0.30",
    DrawGenerator.MURMUR3: "the MurmurHash3 draw of vLLM from 0.31 on",
}


@dataclass(frozen=True, slots=True)
class _Alternative:
    explanation: str
    stream: Stream
    scale: float = 1.0


def explain(evidence: Evidence, choice: Choice, support: Support) -> str | None:
    """Say what else would give the tokens that the repeated draw does not, or None.

    Tried in turn, until one explains every decidable row: the other generator, the other
    precision, raw logprobs to which the temperature is still to be applied, the seed of another
    choice, neighbouring positions, positions that ignore the prompt, a row lost or repeated on
    the way, greedy decoding; and at last speculation that nobody has declared.
    """
    stream = stream_of(evidence, choice)
    if isinstance(stream, Reason):
        return None
    head = _head(support, _TRIED_ROWS)
    tolerance = draw_tolerance(evidence.sampling, len(choice))
    for alternative in _alternatives(evidence, choice, stream):
        scaled = replace(head, logprobs=head.logprobs * alternative.scale)
        if _repeats(scaled, alternative.stream, tolerance):
            return alternative.explanation
    return (
        _moved(support, stream, tolerance)
        or _greedy(head)
        or _undeclared_speculation(evidence, support, stream, tolerance)
    )


def _alternatives(evidence: Evidence, choice: Choice, stream: Stream) -> Iterator[_Alternative]:
    temperature = evidence.sampling.temperature
    other = next(g for g in DrawGenerator if g is not stream.generator)
    yield _Alternative(
        f"every row repeats with {_GENERATORS[other]}: the server is not the version given",
        replace(stream, generator=other),
    )
    precision = "without" if stream.fp64 else "with"
    yield _Alternative(
        f"every row repeats {precision} --use-fp64-gumbel (options.use_fp64_gumbel)",
        replace(stream, fp64=not stream.fp64),
    )
    if temperature != 1.0:
        yield _Alternative(
            f"every row repeats after dividing the logprobs by temperature {temperature:g}: they "
            "are raw, the temperature is not applied",
            stream,
            1.0 / temperature,
        )
    first_seed = stream.seed - choice.index
    if choice.index:
        yield _Alternative(
            "every row repeats with the request's seed itself: this is choice 0, or its own "
            "request",
            replace(stream, seed=first_seed),
        )
    for index in range(1, min(evidence.sampling.n, _TRIED_CHOICES)):
        if index != choice.index:
            yield _Alternative(
                f"every row repeats as choice {index}: choices are mixed up",
                replace(stream, seed=first_seed + index),
            )
    for shift in (1, -1):
        yield _Alternative(
            f"every row repeats {shift:+d} position away: the prompt is not the one answered",
            replace(stream, first_position=stream.first_position + shift),
        )
    yield _Alternative(
        "every row repeats with positions counted from the first generated token",
        replace(stream, first_position=0),
    )


def _repeats(support: Support, stream: Stream, tolerance: float) -> bool:
    """Whether every decidable row repeats, and there are enough of them."""
    gap = contest(support, stream).known
    decidable = _several(support) & (np.abs(gap) > tolerance)
    rows = np.count_nonzero(decidable)
    return bool(rows >= _ENOUGH_ROWS and np.all(gap[decidable] > 0))


def _moved(support: Support, stream: Stream, tolerance: float) -> str | None:
    """Whether rows repeat up to some row, and one position away from there on."""
    lost = _several(support) & (contest(support, stream).known < -tolerance)
    first = int(np.argmax(lost))
    for shift, what in ((1, "lost"), (-1, "repeated")):
        rest = _rows_from(support, first)
        moved = replace(stream, first_position=stream.first_position + first + shift)
        if _repeats(rest, moved, tolerance):
            return (
                f"every row from row {first} on repeats {shift:+d} position away: a row was "
                f"{what} before it"
            )
    return None


def _greedy(support: Support) -> str | None:
    """Whether every sampled token is the likeliest of its row."""
    several = _several(support) & (support.sampled_at >= 0)
    own = support.upper[support.sampled_at[several]]
    if len(own) < _ENOUGH_ROWS or bool(np.any(own < support.best[several] - TIE)):
        return None
    return "every token is the likeliest of its row: chosen greedily, not drawn"


def _undeclared_speculation(
    evidence: Evidence, support: Support, stream: Stream, tolerance: float
) -> str | None:
    """Whether a speculating server could have drawn every mismatched row."""
    if evidence.speculated is not None:
        return None
    sums = contest(support, stream)
    lost = (sums.known < -tolerance) & (support.sampled_at >= 0) & _replayed(support)
    if not np.all(explain_rows(support, sums, stream, tolerance).possible[lost]):
        return None
    return (
        "a server that speculates may draw these tokens; say options.speculative true if it "
        "does, false if it does not (nothing said counts as false)"
    )


def _several(support: Support) -> NDArray[np.bool_]:
    """Replayed rows of which more than one member is known to have competed, (n,)."""
    return (support.masks.counts > 1) & support.covered & _replayed(support)


def _replayed(support: Support) -> NDArray[np.bool_]:
    return np.ones(len(support.masks), np.bool_) if support.replayed is None else support.replayed


def _head(support: Support, rows: int) -> Support:
    """The first rows, without their candidates."""
    return _part(support, 0, min(rows, len(support.masks)))


def _rows_from(support: Support, first: int) -> Support:
    """Some rows from `first` on, without their candidates."""
    return _part(support, first, min(first + _TRIED_ROWS, len(support.masks)))


def _part(support: Support, first: int, end: int) -> Support:
    offsets = support.masks.offsets[first : end + 1]
    start = int(offsets[0])
    members = slice(start, int(offsets[-1]))
    sampled_at = support.sampled_at[first:end]
    return Support(
        masks=Ragged(support.masks.values[members], offsets - start),
        logprobs=support.logprobs[members],
        sampled_at=np.where(sampled_at >= 0, sampled_at - start, -1),
        candidate_at=np.empty(0, np.int64),
        candidates=None,
        ranked=False,
        replayed=None if support.replayed is None else support.replayed[first:end],
    )
