"""Corruptions of sampling masks."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.replay.corruptions.kind import Kind
from tests.replay.corruptions.rows import (
    VOCABULARY,
    Case,
    Row,
    in_each_row,
    in_one_row,
    rows_of,
    with_rows,
)
from tests.replay.corruptions.source import answered

# Ids that a bounded buffer keeps of each mask.
_BUFFER = 4


def shift_the_masks(case: Case, rng: random.Random) -> Case | None:
    """Give every token the mask of the row after it."""
    rows = rows_of(case)
    masks = [row.mask for row in rows]
    return _with_masks(case, rows, masks[1:] + masks[:1])


def take_the_neighbours_mask(case: Case, rng: random.Random) -> Case | None:
    """Give one token the mask of the row before it."""
    rows = rows_of(case)
    masks = [row.mask for row in rows]
    places = [i for i in range(1, len(rows)) if masks[i] != masks[i - 1]]
    if not places:
        return None
    place = rng.choice(places)
    return _with_masks(case, rows, [*masks[:place], masks[place - 1], *masks[place + 1 :]])


def take_another_models_masks(case: Case, rng: random.Random) -> Case | None:
    """Take the masks of what another model answered to the same request."""
    other = answered(case["vllm_version"], case["request"], model_seed=1)
    return _with_masks(case, rows_of(case), [row.mask for row in rows_of(other)])


def lose_an_id(case: Case, rng: random.Random) -> Case | None:
    """Let one mask lack an id, though not the sampled one."""

    def change(row: Row) -> Row | None:
        others = [token for token in row.mask if token != row.token]
        return _without(row, rng.choice(others)) if others else None

    return in_one_row(case, rng, change)


def lose_the_sampled_id(case: Case, rng: random.Random) -> Case | None:
    """Let one mask lack the sampled id."""
    return in_one_row(case, rng, lambda row: _without(row, row.token))


def gain_an_id(case: Case, rng: random.Random) -> Case | None:
    """Let one mask have an id more."""

    def change(row: Row) -> Row:
        gained = rng.choice([token for token in range(VOCABULARY) if token not in row.mask])
        return replace(row, mask=tuple(sorted((*row.mask, gained))))

    return in_one_row(case, rng, change)


def name_an_id_twice(case: Case, rng: random.Random) -> Case | None:
    """Let one mask name an id twice."""
    return in_one_row(
        case, rng, lambda row: replace(row, mask=tuple(sorted((*row.mask, row.mask[0]))))
    )


def empty_a_mask(case: Case, rng: random.Random) -> Case | None:
    """Let one mask be empty."""
    return in_one_row(case, rng, lambda row: replace(row, mask=()))


def take_masks_before_top_p(case: Case, rng: random.Random) -> Case | None:
    """Give the top_k likeliest ids, as if top_p and min_p came after the mask."""
    top_k = case["request"]["sampling_params"]["top_k"]

    def change(row: Row) -> Row:
        ranked = sorted(row.candidates, key=lambda candidate: -candidate.logprob)
        likeliest = {candidate.token for candidate in ranked[:top_k]}
        return replace(row, mask=tuple(sorted(likeliest | set(row.mask))))

    return in_each_row(case, change)


def cut_the_masks(case: Case, rng: random.Random) -> Case | None:
    """Keep the first ids of each mask, as many as a small buffer holds."""
    return in_each_row(case, lambda row: replace(row, mask=row.mask[:_BUFFER]))


def take_padding_for_ids(case: Case, rng: random.Random) -> Case | None:
    """Fill every mask with zeros to the width of the widest."""
    rows = rows_of(case)
    width = max(len(row.mask) for row in rows)
    return _with_masks(case, rows, [row.mask + (0,) * (width - len(row.mask)) for row in rows])


def order_masks_downwards(case: Case, rng: random.Random) -> Case | None:
    """Give the ids of each mask from the largest to the smallest."""
    return in_each_row(case, lambda row: replace(row, mask=row.mask[::-1]))


def _with_masks(case: Case, rows: list[Row], masks: list[tuple[int, ...]]) -> Case | None:
    changed = [replace(row, mask=mask) for row, mask in zip(rows, masks, strict=True)]
    return None if changed == rows else with_rows(case, changed)


def _without(row: Row, token: int) -> Row:
    return replace(row, mask=tuple(member for member in row.mask if member != token))


MASKS = (
    Kind("masks shifted by one row", shift_the_masks),
    Kind("the neighbour's mask in a row", take_the_neighbours_mask),
    Kind("another model's masks", take_another_models_masks),
    Kind("a mask lost an id", lose_an_id),
    Kind("a mask lost the sampled id", lose_the_sampled_id),
    Kind("a mask gained an id", gain_an_id),
    Kind("a mask names an id twice", name_an_id_twice),
    Kind("an empty mask", empty_a_mask),
    Kind("masks taken before top_p and min_p", take_masks_before_top_p),
    Kind(f"masks cut to {_BUFFER} ids", cut_the_masks),
    Kind("padding taken for ids", take_padding_for_ids),
    Kind(
        "masks descending",
        order_masks_downwards,
        unseen="a mask is a set, so nothing is wrong; `replay-mask-order` remarks it",
    ),
)
