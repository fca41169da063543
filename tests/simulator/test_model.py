from __future__ import annotations

import hashlib

import numpy as np
import pytest

from app.simulator.model import CONTEXT, ToyModel
from app.simulator.tokenizer import VOCABULARY


def test_two_models_of_one_seed_agree_and_of_two_seeds_do_not() -> None:
    prompt = [5, 17, 99]

    assert np.array_equal(ToyModel().logits(prompt), ToyModel(0).logits(prompt))
    assert not np.array_equal(ToyModel().logits(prompt), ToyModel(1).logits(prompt))


def test_logits_are_the_same_on_every_machine() -> None:
    rows = np.concatenate([ToyModel().logits(list(range(n))) for n in range(1, 9)])

    digest = hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest()
    assert digest == "13a4579b097821598d5e8b5a597006cc81e3833ae260b67d4fc66d188bd89559"


def test_a_row_is_single_precision_over_the_vocabulary() -> None:
    row = ToyModel().logits([1])

    assert row.dtype == np.float32
    assert row.shape == (VOCABULARY,)
    assert np.isfinite(row).all()


@pytest.mark.parametrize("age", range(1, CONTEXT + 1))
def test_each_recent_token_changes_the_logits(age: int) -> None:
    prompt = [5, 17, 99, 300]
    other = list(prompt)
    other[-age] = 7

    assert not np.array_equal(ToyModel().logits(prompt), ToyModel().logits(other))


def test_the_position_changes_the_logits() -> None:
    recent = [5, 17, 99]

    assert not np.array_equal(ToyModel().logits(recent), ToyModel().logits([0, *recent]))


def test_rows_have_ties_as_a_coarse_head_gives() -> None:
    row = ToyModel().logits([5, 17, 99])

    assert len(np.unique(row)) < row.size
    assert (row * 16 == np.round(row * 16)).all()


def test_the_distribution_is_neither_flat_nor_certain() -> None:
    row = ToyModel().logits([5, 17, 99]).astype(np.float64)
    probability = np.exp(row - row.max())
    probability /= probability.sum()

    assert 0.01 < probability.max() < 0.95
