"""Draws under speculative decoding with one-hot drafts that are verified as blocks (0.32 on).

Block verification (Sun et al., 2024, arXiv:2403.10444) as in
`v1/worker/gpu/spec_decode/rejection_sampler_utils.py::_rejection_kernel`. With p_i the product
of the target's probabilities of the first i drafts, the accepted length is the largest i with
u_i <= h_i, where h_i = p_i for the last draft, else r / (r + 1 - p_i) with r = p_i times one
minus the probability of the draft that follows. The next token is drawn with the plain noise,
from the row without the rejected draft, or plainly after the last one. u_i comes from seed and
position, and from 0.33 on from the step in the block too.

Neither drafts nor blocks are returned, so tokens are explained if some division into blocks
explains them. A token that wins the plain draw is a block of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.replay.contest import Contest, Stream
from app.replay.draw import acceptance_uniform
from app.replay.speculation import Explained, Standing, standing_of
from app.replay.support import Support

_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows `start` to `drawn - 1` were accepted and row `drawn` was drawn.

    `drawn` is n where the block was cut by the end of the response. `certain` blocks need no
    tolerance, and nothing beyond the response.
    """

    start: int
    drawn: int
    certain: bool


def explain_blocks(
    support: Support,
    sums: Contest,
    stream: Stream,
    tolerance: float,
    *,
    drafts: int,
    salted: bool,
) -> Explained:
    """Say for each row whether a division into blocks of up to `drafts` drafts gives its token.

    `salted` is whether the step in the block goes into u (0.33 on).
    """
    at = standing_of(support, sums, tolerance)
    rows = len(support.masks)
    log_u = _log_uniforms(stream, rows, drafts, salted=salted)
    blocks = [list(_blocks_at(start, at, log_u, tolerance)) for start in range(rows)]
    accepted, residual = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    possible = np.zeros(rows, np.bool_)
    start = 0
    while start < rows:
        end = _furthest(blocks, start, rows)
        # From `end` on no block leads further: its token is the one that nothing explains.
        possible[start:end] = True
        for block in _on_certain_paths(blocks, start, end):
            accepted[block.start : block.drawn] = True
            if block.drawn < rows and not at.won[block.drawn]:
                residual[block.drawn] = True
        start = end + 1
    return Explained(accepted, residual, possible)


def _log_uniforms(stream: Stream, rows: int, drafts: int, *, salted: bool) -> NDArray[np.float64]:
    """Give ln u of each step of a block at each row, (drafts, n)."""
    positions = np.arange(rows, dtype=np.int64) + stream.first_position
    seeds = [(stream.seed % _WORD) ^ (step << 32 if salted else 0) for step in range(drafts)]
    uniforms = [acceptance_uniform(seed, positions) for seed in seeds]
    return np.log(np.array(uniforms).astype(np.float64))


def _blocks_at(
    start: int, at: Standing, log_u: NDArray[np.float64], tolerance: float
) -> Iterator[_Block]:
    """Give the blocks that may begin at row `start`."""
    drafts, rows = log_u.shape
    joint, known = 0.0, True
    for taken in range(min(drafts, rows - start) + 1):
        drawn = start + taken
        if taken:
            joint += float(at.own[drawn - 1])
            known &= bool(at.known[drawn - 1])
            if joint == -math.inf:
                return
        slack = tolerance * (taken + 1)
        chance = float(log_u[taken - 1, drawn - 1]) if taken else -math.inf
        sure = known and chance <= joint - slack
        if drawn == rows:
            # What decided may lie beyond the end, unless these were all.
            if taken:
                yield _Block(start, rows, sure)
            return
        if at.may_have_won[drawn] and chance <= joint + slack:
            yield _Block(start, drawn, sure and bool(at.won[drawn]))
        if taken < drafts and at.may_be_second[drawn]:
            top = float(at.top[drawn])
            threshold = _threshold(joint, top)
            if chance <= threshold + slack:
                # Certain if the winner was the last draft, and was rejected.
                rejected = float(log_u[taken, drawn]) >= joint + top + slack
                certain = sure and rejected and chance <= threshold - slack
                yield _Block(start, drawn, certain and bool(at.second[drawn]))


def _threshold(joint: float, following: float) -> float:
    """Give ln h of a draft with ln p_i = `joint`, followed by one of this ln probability."""
    p, rest = math.exp(min(joint, 0.0)), -math.expm1(min(following, 0.0))
    mass = p * rest
    if mass <= 0.0:
        return 0.0 if p >= 1.0 else -math.inf
    return math.log(mass / (mass + 1.0 - p))


def _furthest(blocks: list[list[_Block]], start: int, rows: int) -> int:
    """The last row up to which blocks explain everything from `start` on; `rows` for all."""
    reached = {start}
    for row in range(start, rows):
        if row in reached:
            reached.update(min(block.drawn + 1, rows) for block in blocks[row])
    return max(reached)


def _on_certain_paths(blocks: list[list[_Block]], start: int, end: int) -> Iterator[_Block]:
    """Give the certain blocks that are part of a division of rows `start` to `end - 1`."""
    rows = len(blocks)
    begins = {start}
    for row in range(start, end):
        if row in begins:
            begins.update(min(b.drawn + 1, rows) for b in blocks[row] if b.certain)
    leads = {end}
    for row in range(end - 1, start - 1, -1):
        if any(b.certain and min(b.drawn + 1, rows) in leads for b in blocks[row]):
            leads.add(row)
    for row in range(start, end):
        if row in begins:
            yield from (b for b in blocks[row] if b.certain and min(b.drawn + 1, rows) in leads)
