"""Recorded responses that were tampered with, and what the report says of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from app.replay.report import ReplayVerdict, render_text, replay
from tests.replay.engine import Engine
from tests.replay.recorded import Case, rules_of
from tests.replay.tampering import (
    add_a_listed_id,
    add_an_unlisted_id,
    another_min_p,
    another_prompt,
    another_top_k,
    contradict_the_sampled_logprob,
    drop_a_mask_id,
    drop_the_sampled_id,
    each_logprob,
    empty_a_mask,
    finite_logprob_outside,
    half_precision_logprobs,
    id_beyond_vocabulary,
    list_a_candidate_twice,
    logits_for_logprobs,
    raw_logprobs,
    repeat_a_mask_id,
    scaled_logprobs,
    shift_logprobs,
    shift_masks,
    swap_a_token,
    two_choices_under_one_index,
    wrong_seed,
    wrong_version,
)


@pytest.mark.parametrize(
    ("corrupt", "rule"),
    [
        (swap_a_token, "replay-draw"),
        (shift_masks, "replay-sampled-in-mask"),
        (drop_a_mask_id, "replay-normalisation"),
        (drop_a_mask_id, "replay-outside-mask"),
        (drop_the_sampled_id, "replay-sampled-in-mask"),
        (add_a_listed_id, "replay-mask-finite"),
        (add_an_unlisted_id, "replay-mask-finite"),
        (repeat_a_mask_id, "replay-mask-unique"),
        (empty_a_mask, "replay-mask-empty"),
        (raw_logprobs, "replay-normalisation"),
        (scaled_logprobs, "replay-normalisation"),
        (half_precision_logprobs, "replay-normalisation"),
        (logits_for_logprobs, "replay-logprob-range"),
        (shift_logprobs, "replay-alignment"),
        (finite_logprob_outside, "replay-outside-mask"),
        (contradict_the_sampled_logprob, "replay-sampled-logprob"),
        (list_a_candidate_twice, "replay-candidates"),
        (id_beyond_vocabulary, "replay-ids"),
        (wrong_seed, "replay-draw"),
        (wrong_version, "replay-draw"),
        (another_prompt, "replay-draw"),
        (another_min_p, "replay-min-p"),
        (another_top_k, "replay-mask-size"),
        (two_choices_under_one_index, "replay-choices"),
    ],
)
def test_a_corruption_is_refuted(corrupt: Callable[[Case], None], rule: str) -> None:
    case = Engine().case(top_k=8, top_p=0.95, logprobs=12, max_tokens=40)
    assert replay(case).verdict is ReplayVerdict.CONSISTENT
    corrupt(case)
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT
    assert rule in rules_of(report), render_text(report)
    finding = next(f for f in report.findings if f.rule == rule)
    assert finding.location is not None
    assert finding.location.pointer is not None
    assert rule in render_text(report)


@pytest.mark.parametrize(
    ("corrupt", "diagnosis"),
    [
        (wrong_version, "MurmurHash3"),
        (another_prompt, "-1 position"),
    ],
)
def test_a_mismatch_says_what_would_explain_it(
    corrupt: Callable[[Case], None], diagnosis: str
) -> None:
    case = Engine().case(logprobs=12, max_tokens=40)
    corrupt(case)
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert diagnosis in finding.evidence["diagnosis"]
    assert diagnosis in finding.message


def test_precision_of_the_noise_is_diagnosed() -> None:
    case = Engine(fp64=True).case(logprobs=12, max_tokens=40)
    del case["options"]
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert "--use-fp64-gumbel" in finding.message


def test_a_temperature_that_is_not_in_the_logprobs_is_diagnosed() -> None:
    case = Engine().case(temperature=0.5, logprobs=12, max_tokens=40)
    each_logprob(case, lambda logprob: logprob * 0.5)
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert "temperature 0.5" in finding.message


def test_kept_mass_is_told() -> None:
    case = Engine().case(logprobs=12, max_tokens=40)
    raw_logprobs(case)
    finding = next(f for f in replay(case).findings if f.rule == "replay-normalisation")
    assert finding.evidence["kept_mass"] == pytest.approx(np.exp(-0.1), rel=1e-4)
    assert "processed_logprobs" in finding.message


def test_shifted_masks_are_recognised() -> None:
    case = Engine().case(logprobs=12, max_tokens=40)
    shift_masks(case)
    finding = next(f for f in replay(case).findings if f.rule == "replay-sampled-in-mask")
    assert finding.evidence["fits_moved_by"] == -1
