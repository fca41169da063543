"""Why draws do not repeat: what else would explain the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from app.catalogue.semantics import DrawGenerator
from app.replay.contest import Stream, contest
from app.replay.evidence import Choice, Evidence
from app.replay.ragged import Ragged
from app.replay.rows import Reason, stream_of
from app.replay.support import Support
from app.replay.tolerances import draw_tolerance

# Rows that are tried again; a wrong explanation fails on about half of them.
_TRIED_ROWS = 256
# Fewer decidable rows than this would let chance explain them.
_ENOUGH_ROWS = 6
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
    """Give the first alternative under which every decidable row repeats, or None.

    Tried are: the other generator, the other precision, the seed without the choice's index,
    neighbouring positions, positions that ignore the prompt, and raw logprobs to which the
    temperature is still to be applied.
    """
    stream = stream_of(evidence, choice)
    if isinstance(stream, Reason):
        return None
    head = _head(support, _TRIED_ROWS)
    tolerance = draw_tolerance(evidence.sampling, len(choice))
    for alternative in _alternatives(evidence, choice, stream):
        scaled = replace(head, logprobs=head.logprobs * alternative.scale)
        sums = contest(scaled, alternative.stream)
        decidable = (head.masks.counts > 1) & head.covered & (np.abs(sums.known) > tolerance)
        rows = np.count_nonzero(decidable)
        if rows >= _ENOUGH_ROWS and bool(np.all(sums.known[decidable] > 0)):
            return alternative.explanation
    return None


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
    if choice.index:
        yield _Alternative(
            "every row repeats with the request's seed itself: this choice was its own request",
            replace(stream, seed=stream.seed - choice.index),
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


def _head(support: Support, rows: int) -> Support:
    """The first rows, without their candidates."""
    offsets = support.masks.offsets[: rows + 1]
    end = int(offsets[-1])
    return Support(
        masks=Ragged(support.masks.values[:end], offsets),
        logprobs=support.logprobs[:end],
        sampled_at=support.sampled_at[: len(offsets) - 1],
        candidate_at=np.empty(0, np.int64),
        candidates=None,
        ranked=False,
    )
