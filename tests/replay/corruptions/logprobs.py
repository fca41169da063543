"""Corruptions of logprobs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from app.simulator.model import ToyModel
from app.simulator.sampler import LogprobsMode
from tests.replay.corruptions.kind import Corrupt, Kind
from tests.replay.corruptions.rows import (
    FLOOR,
    Candidate,
    Case,
    Row,
    in_each_row,
    in_one_row,
    rows_of,
    with_rows,
)
from tests.replay.corruptions.source import answered


def each_number(change: Callable[[float], float]) -> Corrupt:
    """Make the corruption that changes every logprob, save of what the engine cut off."""

    def corrupt(case: Case, rng: random.Random) -> Case | None:
        return in_each_row(case, lambda row: row.scored(lambda c: change(c.logprob)))

    return corrupt


def bfloat16(value: float) -> float:
    """Round to bfloat16, to the nearest and ties to even."""
    (bits,) = np.array([value], np.float32).view(np.uint32)
    rounded = (int(bits) + 0x7FFF + (int(bits) >> 16 & 1)) & 0xFFFF0000
    return float(np.array([rounded], np.uint32).view(np.float32)[0])


def serve_raw_logprobs(case: Case, rng: random.Random) -> Case | None:
    """Take the logprobs of the same server without `--logprobs-mode processed_logprobs`."""
    raw = answered(case["vllm_version"], case["request"], logprobs_mode=LogprobsMode.RAW_LOGPROBS)
    rows = rows_of(case)
    changed = [
        replace(row, own=other.own, candidates=other.candidates)
        for row, other in zip(rows, rows_of(raw), strict=True)
    ]
    return None if changed == rows else with_rows(case, changed)


def leave_the_temperature_out(case: Case, rng: random.Random) -> Case | None:
    """Normalise over the mask without having divided by the temperature."""
    temperature = case["request"]["sampling_params"]["temperature"]
    if temperature == 1:
        return None
    return in_each_row(case, lambda row: _normalised(row, lambda c: c.logprob * temperature))


def heat_a_little(case: Case, rng: random.Random) -> Case | None:
    """Normalise over the mask at a temperature one tenth higher."""
    return in_each_row(case, lambda row: _normalised(row, lambda c: c.logprob / 1.1))


def take_another_models(case: Case, rng: random.Random) -> Case | None:
    """Score the same tokens with another model, normalised over the same masks."""
    model, temperature = ToyModel(1), case["request"]["sampling_params"]["temperature"]
    context = list(case["request"]["token_ids"])
    changed = []
    for row in rows_of(case):
        scores = (model.logits(context) / temperature).tolist()
        changed.append(_normalised(row, partial(_looked_up, scores)))
        context.append(row.token)
    return with_rows(case, changed)


def take_a_later_checkpoints(case: Case, rng: random.Random) -> Case | None:
    """Disturb every logprob a little (deviation 0.1), normalised over the same masks."""
    return in_each_row(case, lambda row: _normalised(row, lambda c: c.logprob + rng.gauss(0, 0.1)))


def shift_the_entries(case: Case, rng: random.Random) -> Case | None:
    """Give every token the logprob entry of the row after it."""
    rows = rows_of(case)
    return _with_scores(case, rows, rows[1:] + rows[:1])


def shift_the_numbers(case: Case, rng: random.Random) -> Case | None:
    """Give every token the numbers of the row after it, ids staying where they are."""
    rows = rows_of(case)
    changed = []
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        numbers = [candidate.logprob for candidate in other.candidates]
        numbers += [FLOOR] * max(0, len(row.candidates) - len(numbers))
        listed = tuple(
            replace(candidate, logprob=number)
            for candidate, number in zip(row.candidates, numbers, strict=False)
        )
        changed.append(replace(row, own=listed[0], candidates=listed))
    return None if changed == rows else with_rows(case, changed)


def take_the_neighbours_logprob(case: Case, rng: random.Random) -> Case | None:
    """Give one sampled token the sampled logprob of the row before it."""
    rows = rows_of(case)
    places = [i for i in range(1, len(rows)) if rows[i].own.logprob != rows[i - 1].own.logprob]
    if not places:
        return None
    place = rng.choice(places)
    row = rows[place]
    own = replace(row.own, logprob=rows[place - 1].own.logprob)
    rows[place] = replace(row, own=own, candidates=(own, *row.candidates[1:]))
    return with_rows(case, rows)


def contradict_the_candidates(case: Case, rng: random.Random) -> Case | None:
    """Let one sampled logprob differ from the one among the candidates."""
    return in_one_row(
        case, rng, lambda row: replace(row, own=replace(row.own, logprob=row.own.logprob - 0.01))
    )


def change_one_number(case: Case, rng: random.Random) -> Case | None:
    """Raise the largest logprob of one mask by a hundredth."""

    def change(row: Row) -> Row:
        best = max(row.candidates, key=lambda candidate: candidate.logprob)
        return row.scored(lambda c: c.logprob + (0.01 if c.token == best.token else 0.0))

    return in_one_row(case, rng, change)


def clamp_the_unlikely(case: Case, rng: random.Random) -> Case | None:
    """Send -9999 for whatever is below -2."""
    return in_each_row(
        case, lambda row: row.scored(lambda c: c.logprob if c.logprob > -2 else FLOOR)
    )


def list_one_twice(case: Case, rng: random.Random) -> Case | None:
    """List one candidate a second time, with another logprob."""

    def change(row: Row) -> Row:
        again = replace(row.own, logprob=row.own.logprob - 1.0)
        return replace(row, candidates=(*row.candidates, again))

    return in_one_row(case, rng, change)


def send_what_is_no_number(case: Case, rng: random.Random) -> Case | None:
    """Send NaN for one logprob."""
    return in_one_row(case, rng, lambda row: replace(row, own=replace(row.own, logprob=math.nan)))


def _with_scores(case: Case, rows: list[Row], scores: list[Row]) -> Case | None:
    changed = [
        replace(row, own=other.own, candidates=other.candidates)
        for row, other in zip(rows, scores, strict=True)
    ]
    return None if changed == rows else with_rows(case, changed)


def _looked_up(scores: list[float], candidate: Candidate) -> float:
    return scores[candidate.token]


def _normalised(row: Row, score: Callable[[Candidate], float]) -> Row:
    """The row with a log-softmax of `score` over its mask, rounded to float32."""
    scores = {c.token: score(c) for c in row.candidates if c.logprob > FLOOR}
    top = max(scores.values())
    normaliser = top + math.log(math.fsum(math.exp(value - top) for value in scores.values()))
    return row.scored(lambda c: float(np.float32(scores[c.token] - normaliser)))


LOGPROBS = (
    Kind("logprobs times 1.1", each_number(lambda value: value * 1.1)),
    Kind("logprobs less 0.1 (kept mass 0.9)", each_number(lambda value: value - 0.1)),
    Kind("raw logprobs", serve_raw_logprobs),
    Kind("temperature not applied", leave_the_temperature_out),
    Kind("temperature a tenth higher", heat_a_little),
    Kind("another model's logprobs", take_another_models),
    Kind("a later checkpoint's (noise 0.1)", take_a_later_checkpoints),
    Kind("float16 logprobs", each_number(lambda value: float(np.float16(value)))),
    Kind("bfloat16 logprobs", each_number(bfloat16)),
    Kind("logprobs of two decimals", each_number(lambda value: round(value, 2))),
    Kind("logprobs of three decimals", each_number(lambda value: round(value, 3))),
    Kind(
        "logprobs of five decimals",
        each_number(lambda value: round(value, 5)),
        unseen="off by 5e-6 at most, within the tolerances of fp32",
    ),
    Kind("probabilities for logprobs", each_number(math.exp)),
    Kind("logits for logprobs (plus 5)", each_number(lambda value: value + 5.0)),
    Kind("signs flipped", each_number(lambda value: -value)),
    Kind("-9999 for whatever is below -2", clamp_the_unlikely),
    Kind("logprob entries shifted by one row", shift_the_entries),
    Kind("numbers shifted by one row, ids kept", shift_the_numbers),
    Kind("the neighbour's sampled logprob", take_the_neighbours_logprob),
    Kind("sampled logprob unlike the candidate's", contradict_the_candidates),
    Kind("one row's largest number up by 0.01", change_one_number),
    Kind("a candidate listed twice", list_one_twice),
    Kind("NaN for a logprob", send_what_is_no_number),
)
