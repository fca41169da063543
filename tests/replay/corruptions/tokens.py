"""Corruptions of tokens, and of rows as a whole."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.replay.corruptions.kind import Kind
from tests.replay.corruptions.rows import (
    VOCABULARY,
    Candidate,
    Case,
    Row,
    as_events,
    in_each_row,
    in_one_row,
    reordered,
    rows_of,
    with_choice,
    with_response,
    with_rows,
)


def swap_a_token(case: Case, rng: random.Random) -> Case | None:
    """Replace one token by another of its mask, its logprob with it."""

    def change(row: Row) -> Row | None:
        others = [token for token in row.mask if token != row.token]
        return row.sampling(rng.choice(others)) if others else None

    return in_one_row(case, rng, change)


def take_the_likeliest(case: Case, rng: random.Random) -> Case | None:
    """Replace every token by the likeliest of its row, as greedy decoding would."""

    def change(row: Row) -> Row:
        best = max(row.candidates, key=lambda candidate: candidate.logprob)
        # On a tie the token may stay.
        return row if best.logprob <= row.own.logprob else row.sampling(best.token)

    return in_each_row(case, change)


def take_one_from_outside(case: Case, rng: random.Random) -> Case | None:
    """Replace one token by an id that its mask lacks."""

    def change(row: Row) -> Row:
        outside = [token for token in range(VOCABULARY) if token not in row.mask]
        return row.sampling(rng.choice(outside))

    return in_one_row(case, rng, change)


def repeat_a_row(case: Case, rng: random.Random) -> Case | None:
    """Let one row come twice; the last falls off, so that the length stays."""
    count = len(rows_of(case))
    place = rng.randrange(count)
    return reordered(case, [i if i <= place else i - 1 for i in range(count)])


def lose_a_row(case: Case, rng: random.Random) -> Case | None:
    """Lose one row before the last."""
    count = len(rows_of(case))
    if count < 2:
        return None
    place = rng.randrange(count - 1)
    return reordered(case, [i for i in range(count) if i != place])


def exchange_two_rows(case: Case, rng: random.Random) -> Case | None:
    """Exchange two neighbouring rows."""
    count = len(rows_of(case))
    if count < 2:
        return None
    place = rng.randrange(count - 1)
    order = list(range(count))
    order[place : place + 2] = [place + 1, place]
    return reordered(case, order)


def shuffle_the_rows(case: Case, rng: random.Random) -> Case | None:
    """Give the rows in any order."""
    order = list(range(len(rows_of(case))))
    rng.shuffle(order)
    return reordered(case, order)


def reverse_the_rows(case: Case, rng: random.Random) -> Case | None:
    """Give the rows from the last to the first."""
    return reordered(case, range(len(rows_of(case)) - 1, -1, -1))


def renumber_the_ids(case: Case, rng: random.Random) -> Case | None:
    """Move every id by one, as another tokenizer's vocabulary with one more special token."""
    return _renumbered(case, 1)


def use_larger_ids(case: Case, rng: random.Random) -> Case | None:
    """Move every id beyond the model's vocabulary, whose size the operator has given."""
    options = {**case.get("options", {}), "vocab_size": VOCABULARY}
    return {**_renumbered(case, VOCABULARY), "options": options}


def _renumbered(case: Case, by: int) -> Case:
    def moved(candidate: Candidate) -> Candidate:
        return replace(candidate, token=candidate.token + by)

    return with_rows(
        case,
        [
            Row(
                token=row.token + by,
                mask=tuple(token + by for token in row.mask),
                own=moved(row.own),
                candidates=tuple(map(moved, row.candidates)),
            )
            for row in rows_of(case)
        ],
    )


def cut_the_recording(case: Case, rng: random.Random) -> Case | None:
    """Record the response as a stream, and cut the text inside an event."""
    text = as_events(case)
    return {**case, "response": text[: rng.randint(len(text) * 2 // 3, len(text) - 4)]}


def lose_the_end(case: Case, rng: random.Random) -> Case | None:
    """Record the response as a stream of which the last event is missing."""
    events = as_events(case).split("\n\n")[:-1]
    if len(events) < 2:
        return None
    return {**case, "response": "\n\n".join(events[:-1]) + "\n\n"}


def answer_beyond_the_limit(case: Case, rng: random.Random) -> Case | None:
    """Claim a smaller `max_tokens` than there are tokens."""
    count = len(rows_of(case))
    if count < 2:
        return None
    sampling = {**case["request"]["sampling_params"], "max_tokens": count - 1}
    return {**case, "request": {**case["request"], "sampling_params": sampling}}


def exchange_the_choices(case: Case, rng: random.Random) -> Case | None:
    """Exchange the content of two choices, each keeping its index."""
    first, second, *others = case["response"]["choices"]
    exchanged = [
        {**second, "index": first["index"]},
        {**first, "index": second["index"]},
    ]
    return with_response(case, choices=[*exchanged, *others])


def answer_twice_the_same(case: Case, rng: random.Random) -> Case | None:
    """Put a copy of the first choice in the place of the second."""
    first, second, *others = case["response"]["choices"]
    copy = {**first, "index": second["index"]}
    return with_response(case, choices=[first, copy, *others])


def use_an_index_twice(case: Case, rng: random.Random) -> Case | None:
    """Give two choices the same index."""
    return with_choice(case, 1, index=case["response"]["choices"][0]["index"])


TOKENS = (
    Kind("a token swapped within its mask", swap_a_token),
    Kind("every token replaced by the likeliest", take_the_likeliest),
    Kind("a token from outside its mask", take_one_from_outside),
    Kind("a row repeated", repeat_a_row),
    Kind("a row lost", lose_a_row),
    Kind(
        "two rows exchanged",
        exchange_two_rows,
        unseen="one time in four, both tokens also win at each other's position",
    ),
    Kind("rows shuffled", shuffle_the_rows),
    Kind("rows reversed", reverse_the_rows),
    Kind("ids moved by one (another vocabulary)", renumber_the_ids),
    Kind("ids beyond the vocabulary", use_larger_ids),
    Kind("recorded stream cut inside an event", cut_the_recording),
    Kind(
        "recorded stream without its end",
        lose_the_end,
        unseen="what came is what vLLM drew; `replay-unfinished` warns that it is a prefix",
    ),
    Kind("more tokens than max_tokens", answer_beyond_the_limit),
    Kind("choices exchanged (n = 2)", exchange_the_choices, choices=2),
    Kind("a choice copied over another (n = 2)", answer_twice_the_same, choices=2),
    Kind("two choices under one index (n = 2)", use_an_index_twice, choices=2),
)
