"""Responses of servers that speculate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay.report import ReplayVerdict, render_text, replay
from tests.replay.engine import Engine

DECLARED = {"speculative": True}
METRICS = {"speculative_decoding": {"num_drafts": 9}}


def speculative_case(**sampling: Any) -> dict[str, Any]:
    return Engine("0.32.0", speculates=True).case(**{"logprobs": 20, "max_tokens": 80, **sampling})


def test_every_row_is_explained_when_speculation_is_declared() -> None:
    report = replay({**speculative_case(), "options": DECLARED})
    assert report.verdict is ReplayVerdict.CONSISTENT, render_text(report)
    assert report.rows["exact"] == 80
    assert report.choices[0]["accepted_drafts"] > 5
    assert report.choices[0]["residual_draws"] > 5


def test_metrics_of_the_response_declare_it_too() -> None:
    case = speculative_case()
    case["response"]["metrics"] = METRICS
    assert replay(case).verdict is ReplayVerdict.CONSISTENT


def test_undeclared_speculation_is_a_question_and_no_refutation() -> None:
    report = replay(speculative_case())
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert report.rows["undecidable_reasons"].keys() == {"speculation_not_declared"}


def test_speculation_that_is_denied_is_refuted() -> None:
    report = replay({**speculative_case(), "options": {"speculative": False}})
    assert report.verdict is ReplayVerdict.INCONSISTENT


def test_speculation_explains_no_wrong_seed() -> None:
    case = speculative_case()
    case["request"]["sampling_params"]["seed"] += 1
    assert replay(case).verdict is ReplayVerdict.INCONSISTENT
    assert replay({**case, "options": DECLARED}).verdict is ReplayVerdict.INCONSISTENT


def test_a_plain_response_with_a_wrong_seed_is_not_excused_as_speculation() -> None:
    for logprobs in (20, 5):
        case = Engine("0.32.0").case(logprobs=logprobs, max_tokens=80)
        case["request"]["sampling_params"]["seed"] += 1
        assert replay(case).verdict is ReplayVerdict.INCONSISTENT


def test_versions_whose_masks_exclude_speculation_ignore_it() -> None:
    case = {**Engine("0.31.0").case(logprobs=20), "options": DECLARED}
    assert replay(case).verdict is ReplayVerdict.CONSISTENT


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rejection_sample_method": "synthetic"}, "not_reproducible:synthetic_acceptance"),
        ({"rejection_sample_method": "fly"}, "not_reproducible:fly_acceptance"),
        ({"rejection_sample_method": "block"}, "not_reproducible:block_verification"),
        ({"draft_sample_method": "probabilistic"}, "not_reproducible:probabilistic_drafts"),
    ],
)
def test_methods_that_do_not_repeat_are_named(options: dict[str, str], reason: str) -> None:
    report = replay({**speculative_case(), "options": {**DECLARED, **options}})
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert report.rows["undecidable_reasons"].keys() == {reason}


@settings(max_examples=60, deadline=None)
@given(
    model_seed=st.integers(0, 2**32),
    coarse=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 4),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(1, 50),
    top_p=st.floats(0.2, 1.0),
    logprobs=st.integers(0, 48),
    n=st.integers(1, 2),
)
def test_honest_speculation_is_never_refuted(
    model_seed: int, coarse: bool, **sampling: Any
) -> None:
    engine = Engine("0.33.0", model_seed=model_seed, coarse=coarse, speculates=True)
    case = engine.case(max_tokens=24, **sampling)
    declared = replay({**case, "options": DECLARED})
    assert declared.verdict is not ReplayVerdict.INCONSISTENT, render_text(declared)
    # Undeclared, a few mismatches are a refutation: they are no pattern yet.
    assert all(choice["mismatch"] < 12 for choice in replay(case).choices)
