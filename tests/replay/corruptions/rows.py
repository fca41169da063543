"""The rows of a case's choice as values, and a case with other rows in their place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Case = dict[str, Any]

# The simulated model's ids end here.
VOCABULARY = 1024
FLOOR = -9999.0


@dataclass(frozen=True)
class Candidate:
    """A logprob; `rank` from 0.32 on."""

    token: int
    logprob: float
    rank: int | None = None


@dataclass(frozen=True)
class Row:
    """One generated token with its mask, its own logprob and the candidates beside it."""

    token: int
    mask: tuple[int, ...]
    own: Candidate
    candidates: tuple[Candidate, ...]

    def of(self, token: int) -> Candidate:
        """The candidate of that id; one without probability where it is not listed."""
        listed = (candidate for candidate in self.candidates if candidate.token == token)
        return next(listed, Candidate(token, FLOOR))

    def sampling(self, token: int) -> Row:
        """The row as if `token` had been sampled from it."""
        own = self.of(token)
        others = (candidate for candidate in self.candidates if candidate.token != token)
        return replace(self, token=token, own=own, candidates=(own, *others))

    def scored(self, score: Callable[[Candidate], float]) -> Row:
        """The row with another logprob wherever there is one, save of what the engine cut off."""

        def change(candidate: Candidate) -> Candidate:
            if candidate.logprob <= FLOOR:
                return candidate
            return replace(candidate, logprob=score(candidate))

        return replace(self, own=change(self.own), candidates=tuple(map(change, self.candidates)))


def rows_of(case: Case, place: int = 0) -> list[Row]:
    """Read the rows of one choice."""
    choice = case["response"]["choices"][place]
    return [
        Row(
            token=token,
            mask=tuple(mask),
            own=_candidate(entry),
            candidates=tuple(map(_candidate, entry["top_logprobs"])),
        )
        for token, mask, entry in zip(
            choice["token_ids"],
            choice["sampling_mask"],
            choice["logprobs"]["content"],
            strict=True,
        )
    ]


def with_rows(case: Case, rows: Sequence[Row], place: int = 0) -> Case:
    """Give the case with these rows in one of its choices; `case` stays as it is."""
    named = "token_id" in case["response"]["choices"][place]["logprobs"]["content"][0]
    content = [
        {**_entry(row.own, named), "top_logprobs": [_entry(c, named) for c in row.candidates]}
        for row in rows
    ]
    return with_choice(
        case,
        place,
        token_ids=[row.token for row in rows],
        sampling_mask=[list(row.mask) for row in rows],
        logprobs={"content": content},
    )


def with_choice(case: Case, place: int = 0, **members: Any) -> Case:
    """Give the case with other members in one of its choices."""
    choices = list(case["response"]["choices"])
    choices[place] = {**choices[place], **members}
    return with_response(case, choices=choices)


def with_response(case: Case, **members: Any) -> Case:
    """Give the case with other members in its response."""
    return {**case, "response": {**case["response"], **members}}


def with_sampling(case: Case, **params: Any) -> Case:
    """Give the case with other sampling parameters in its request."""
    request = case["request"]
    sampling = {**request["sampling_params"], **params}
    return {**case, "request": {**request, "sampling_params": sampling}}


def in_each_row(case: Case, change: Callable[[Row], Row]) -> Case | None:
    """Change every row; None where that changes nothing."""
    rows = rows_of(case)
    changed = [change(row) for row in rows]
    return None if changed == rows else with_rows(case, changed)


def in_one_row(case: Case, rng: random.Random, change: Callable[[Row], Row | None]) -> Case | None:
    """Change one row, taken at random among those that `change` changes; None without any."""
    rows = rows_of(case)
    places = list(range(len(rows)))
    rng.shuffle(places)
    for place in places:
        changed = change(rows[place])
        if changed is not None and changed != rows[place]:
            return with_rows(case, [*rows[:place], changed, *rows[place + 1 :]])
    return None


def reordered(case: Case, places: Sequence[int]) -> Case | None:
    """Give the case with the rows at these places; None where that changes nothing."""
    rows = rows_of(case)
    changed = [rows[place] for place in places]
    return None if changed == rows else with_rows(case, changed)


def as_events(case: Case, tokens: int = 1) -> str:
    """Record the first choice as a stream of `tokens` a chunk, without its closing event."""
    choice = case["response"]["choices"][0]
    count = len(choice["token_ids"])
    events = []
    for start in range(0, count, tokens):
        part = slice(start, start + tokens)
        chunk = {
            "index": choice["index"],
            "token_ids": choice["token_ids"][part],
            "sampling_mask": choice["sampling_mask"][part],
            "logprobs": {"content": choice["logprobs"]["content"][part]},
            "finish_reason": choice["finish_reason"] if start + tokens >= count else None,
        }
        events.append(f"data: {json.dumps({'choices': [chunk]})}\n\n")
    return "".join(events)


def _candidate(body: Case) -> Candidate:
    token = body.get("token_id")
    if token is None:
        token = int(body["token"].removeprefix("token_id:"))
    return Candidate(token, body["logprob"], body.get("rank"))


def _entry(candidate: Candidate, named: bool) -> Case:
    if named:
        return {
            "token_id": candidate.token,
            "logprob": candidate.logprob,
            "rank": candidate.rank,
        }
    return {"token": f"token_id:{candidate.token}", "logprob": candidate.logprob, "bytes": None}
