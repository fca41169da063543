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
        # Of blocks, how long they are has to be known.
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


# -- blocks ----------------------------------------------------------------------------------


def in_blocks(drafts: int) -> dict[str, Any]:
    return {**DECLARED, "rejection_sample_method": "block", "num_speculative_tokens": drafts}


def block_case(version: str = "0.32.0", drafts: int = 3, **sampling: Any) -> dict[str, Any]:
    engine = Engine(version, blocks=drafts)
    return engine.case(**{"logprobs": 20, "max_tokens": 80, "top_k": 6, **sampling})


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_every_row_of_verified_blocks_is_explained(version: str, drafts: int) -> None:
    report = replay({**block_case(version, drafts), "options": in_blocks(drafts)})
    assert report.verdict is not ReplayVerdict.INCONSISTENT, render_text(report)
    # A few rows hang on drafts that were rejected, or that lie beyond the end of the response.
    assert report.rows["exact"] >= 70
    assert report.rows["undecidable_reasons"].keys() <= {"not_reproducible:block_verification"}
    assert report.choices[0]["accepted_drafts"] > 5
    assert report.choices[0]["residual_draws"] > 2


def test_the_step_in_a_block_decides_from_0_33_on() -> None:
    case = block_case("0.33.0", temperature=2.0, max_tokens=400)
    case["vllm_version"] = "0.32.0"
    assert replay({**case, "options": in_blocks(3)}).rows["mismatch"] > 0


def test_blocks_longer_than_declared_are_refuted() -> None:
    case = block_case(drafts=5, temperature=2.0, max_tokens=400)
    assert replay({**case, "options": in_blocks(5)}).verdict is not ReplayVerdict.INCONSISTENT
    assert replay({**case, "options": in_blocks(1)}).verdict is ReplayVerdict.INCONSISTENT


def test_blocks_excuse_no_wrong_seed() -> None:
    case = {**block_case(), "options": in_blocks(3)}
    case["request"]["sampling_params"]["seed"] += 1
    assert replay(case).rows["mismatch"] > 5


def test_a_row_that_no_block_explains_is_the_one_that_is_shown() -> None:
    case = {**block_case(), "options": in_blocks(3)}
    choice = case["response"]["choices"][0]
    row = 40
    entry = choice["logprobs"]["content"][row]
    unlikely = min(
        (c for c in entry["top_logprobs"] if c["logprob"] > -9999), key=lambda c: c["logprob"]
    )
    entry["top_logprobs"].sort(key=lambda c: c["token_id"] != unlikely["token_id"])
    entry.update(unlikely)
    choice["token_ids"][row] = unlikely["token_id"]
    report = replay(case)
    finding = next(f for f in report.findings if f.rule == "replay-draw")
    assert [shown["row"] for shown in finding.evidence["rows"]] == [row]


@settings(max_examples=60, deadline=None)
@given(
    version=st.sampled_from(["0.32.0", "0.33.0"]),
    drafts=st.integers(1, 6),
    model_seed=st.integers(0, 2**32),
    coarse=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 4),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(1, 50),
    top_p=st.floats(0.2, 1.0),
    logprobs=st.integers(0, 48),
    n=st.integers(1, 2),
)
def test_honest_blocks_are_never_refuted(
    version: str, drafts: int, model_seed: int, coarse: bool, **sampling: Any
) -> None:
    engine = Engine(version, model_seed=model_seed, coarse=coarse, blocks=drafts)
    case = engine.case(max_tokens=24, **sampling)
    report = replay({**case, "options": in_blocks(drafts)})
    assert report.verdict is not ReplayVerdict.INCONSISTENT, render_text(report)
