"""Monte Carlo: fresh draws from the returned rows, and where the sampled tokens lie among them.

Draw d of row i of the choice with index j uses the uniform that Philox4x32-10 gives for the
counter (d // 2, i, j, 0) and the key (seed low, seed high): the first or last two words, for even
or odd d, as 53 bits. So a draw depends on nothing else: not on how many are made, nor on the
order. The uniform picks the id at which the row's probabilities, summed in the mask's order, pass
it. Rows are held fixed: a fresh sequence is one token from each returned row, not a rollout in
which later rows would answer to earlier tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.replay.checks.result import Subject
from app.replay.draw.philox import philox4x32
from app.replay.draw.words import split
from app.replay.evidence import Choice
from app.replay.options import Resampling
from app.replay.ragged import offsets_of, reduce_rows
from app.replay.support import Support

# Draws made at a time.
_BLOCK = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Resampled:
    """Fresh draws of one choice, of whose n rows k can be drawn.

    Attributes:
        index: of the choice.
        rows: those whose distribution is known, (k,) of n.
        total: n.
        ids: the draws, (k, draws); None when not kept.
        frequency: share of a row's draws that gave its sampled id, (k,).
        drawn: log-likelihood of each fresh sequence, (draws,).
        sampled: log-likelihood of the sampled one; -inf where a token has no probability.
    """

    index: int
    rows: NDArray[np.int64]
    total: int
    ids: NDArray[np.int64] | None
    frequency: NDArray[np.float64]
    drawn: NDArray[np.float64]
    sampled: float

    def as_json(self) -> dict[str, Any]:
        """Render as in a report; rows that cannot be drawn are null."""
        frequency: list[float | None] = [None] * self.total
        for row, share in zip(self.rows.tolist(), self.frequency.tolist(), strict=True):
            frequency[row] = share
        body: dict[str, Any] = {
            "index": self.index,
            "rows": len(self.rows),
            "rows_without_distribution": self.total - len(self.rows),
            "log_likelihood": standing(self.sampled, self.drawn)
            if len(self.rows) and np.isfinite(self.sampled)
            else None,
            "frequency": frequency,
        }
        if self.ids is not None:
            token_ids: list[list[int] | None] = [None] * self.total
            for row, drawn in zip(self.rows.tolist(), self.ids.tolist(), strict=True):
                token_ids[row] = drawn
            body["token_ids"] = token_ids
        return body


def standing(sampled: float, drawn: NDArray[np.float64]) -> dict[str, Any]:
    """Say where a number lies among fresh ones, (draws,).

    The p-value is two-sided and counts the number itself among the fresh ones, so that it is
    valid: Davison, Hinkley, "Bootstrap methods and their application", 1997, 4.2.
    """
    slack = 1e-9 * max(abs(sampled), 1.0)
    below = int(np.count_nonzero(drawn < sampled - slack))
    equal = int(np.count_nonzero(np.abs(drawn - sampled) <= slack))
    above = len(drawn) - below - equal
    rarer = (1 + min(below, above) + equal) / (1 + len(drawn))
    return {
        "sampled": sampled,
        "mean": float(drawn.mean()),
        "standard_deviation": float(drawn.std()),
        "below": below,
        "equal": equal,
        "above": above,
        "p_value": min(2.0 * rarer, 1.0),
    }


def resample(choice: Choice, support: Support, asked: Resampling) -> Resampled:
    """Draw each row of a choice anew, `asked.draws` times."""
    known = support.covered if choice.replayed is None else support.covered & choice.replayed
    possible = support.exact & np.repeat(known, support.masks.counts)
    counts = np.bincount(support.masks.row_of[possible], minlength=len(support.masks))
    rows = np.flatnonzero(counts)
    offsets = offsets_of(counts[rows])
    ids, logprobs = support.masks.values[possible], support.logprobs[possible]
    weights = np.exp(logprobs)
    weights /= np.repeat(reduce_rows(np.add, weights, offsets, 1.0), counts[rows])
    place = np.where(possible, np.cumsum(possible) - 1, -1)
    sampled_at = support.sampled_at[rows]
    own = np.where(sampled_at >= 0, place[sampled_at], -1)

    drawn = np.zeros(asked.draws)
    frequency = np.zeros(len(rows))
    kept = np.zeros((len(rows), asked.draws), np.int64) if asked.ids else None
    step = max(_BLOCK // asked.draws, 1)
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        at = _pick(weights, offsets, part, _uniforms(asked, choice.index, rows[part]))
        drawn += logprobs[at].sum(axis=0)
        frequency[part] = (at == own[part, None]).mean(axis=1)
        if kept is not None:
            kept[part] = ids[at]
    inside = own >= 0
    sampled = float(logprobs[own[inside]].sum()) if inside.all() else -np.inf
    return Resampled(choice.index, rows, len(support.masks), kept, frequency, drawn, sampled)


def resample_choices(subjects: Sequence[Subject], asked: Resampling) -> dict[str, Any]:
    """Draw the rows of all choices anew, as a report has it."""
    return {
        "draws": asked.draws,
        "seed": asked.seed,
        "choices": [
            resample(subject.choice, subject.support, asked).as_json() for subject in subjects
        ],
    }


def report_text(resampled: Mapping[str, Any]) -> list[str]:
    """Render for people, a line a choice."""
    lines = []
    for choice in resampled["choices"]:
        text = f"choice {choice['index']}, {choice['rows']} rows, {resampled['draws']} draws"
        place = choice["log_likelihood"]
        if place is not None:
            text += (
                f": log-likelihood {place['sampled']:.4g} among {place['mean']:.4g} ± "
                f"{place['standard_deviation']:.2g}, above {place['below']} of them "
                f"(p-value {place['p_value']:.2g})"
            )
        lines.append(text)
    return lines


def _uniforms(asked: Resampling, index: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """One in [0, 1) for each row and draw, (k, draws)."""
    pairs = (asked.draws + 1) // 2
    row = np.repeat(rows.astype(np.uint32), pairs)
    pair = np.tile(np.arange(pairs, dtype=np.uint32), len(rows))
    choice = np.full(len(row), index & 0xFFFFFFFF, np.uint32)
    words = philox4x32((pair, row, choice, np.zeros(1, np.uint32)), split(asked.seed))
    stacked = np.stack(words, axis=-1).astype(np.uint64).reshape(len(rows), pairs, 2, 2)
    wide = (stacked[..., 0] << np.uint64(32) | stacked[..., 1]) >> np.uint64(11)
    return (wide.astype(np.float64) * 2.0**-53).reshape(len(rows), 2 * pairs)[:, : asked.draws]


def _pick(
    weights: NDArray[np.float64],
    offsets: NDArray[np.int64],
    part: slice,
    uniforms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The place at which each row's sum of weights passes its uniforms, (k, draws)."""
    bounds = offsets[part.start : part.stop + 1]
    total = np.cumsum(weights[bounds[0] : bounds[-1]])
    starts = np.concatenate([[0.0], total])[bounds[:-1] - bounds[0]]
    ends = total[bounds[1:] - bounds[0] - 1]
    targets = starts[:, None] + uniforms * (ends - starts)[:, None]
    at = np.searchsorted(total, targets, side="right") + bounds[0]
    # A row's last sum may round to its target.
    picked: NDArray[np.int64] = np.clip(at, bounds[:-1, None], bounds[1:, None] - 1)
    return picked
