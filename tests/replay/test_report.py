"""Whole cases: real responses and honest synthetic ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay.report import REPORT_SCHEMA, ReplayVerdict, render_text, replay
from tests.replay.engine import Engine
from tests.replay.recorded import ALL_VERSIONS, SAMPLED_VERSIONS, Case, rules_of, sample
from tests.replay.tampering import choice_of, drop_the_sampled_id


@pytest.mark.parametrize("version", SAMPLED_VERSIONS)
def test_every_row_of_a_real_response_repeats(version: str) -> None:
    report = replay(sample(version))
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert report.rows == {
        "total": 12,
        "exact": 12,
        "mismatch": 0,
        "undecidable": 0,
        "not_replayed": 0,
        "undecidable_reasons": {},
    }
    assert report.findings == ()


def test_report_has_the_documented_members() -> None:
    body = replay(sample("0.32.0")).as_json()
    assert body["schema"] == REPORT_SCHEMA
    assert body["id"] == "sample-0.32.0"
    assert set(body) == {
        "schema",
        "id",
        "verdict",
        "vllm_version",
        "rows",
        "choices",
        "checks",
        "findings",
        "statistics",
    }
    assert body["choices"][0]["singleton_rows"] == 1
    assert body["checks"]["replay-draw"] == {"passed": 12, "failed": 0, "not_checked": 0}
    assert json.loads(json.dumps(body)) == body


def test_text_and_parsed_json_give_the_same_report() -> None:
    case = sample("0.31.0")
    parsed = replay(case).as_json()
    assert replay(json.dumps(case).encode()).as_json() == parsed
    assert replay(json.dumps(case)).as_json() == parsed


def test_request_may_come_with_its_endpoint() -> None:
    case = sample("0.32.0")
    bare = replay(case).as_json()
    case["request"] = {"endpoint": "/inference/v1/generate", "body": case["request"]}
    assert replay(case).as_json() == bare
    assert replay(json.dumps(case)).as_json() == bare


@settings(max_examples=120, deadline=None)
@given(
    version=st.sampled_from(ALL_VERSIONS),
    model_seed=st.integers(0, 2**32),
    coarse=st.booleans(),
    keep_ties=st.booleans(),
    fp64=st.booleans(),
    seed=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 4)),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(1, 50),
    top_p=st.floats(0.2, 1.0),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.4)),
    logprobs=st.one_of(st.none(), st.integers(0, 48)),
    n=st.integers(1, 3),
    prompt=st.integers(1, 40),
)
def test_honest_rows_are_never_refuted(
    version: str,
    model_seed: int,
    coarse: bool,
    keep_ties: bool,
    fp64: bool,
    seed: int | None,
    prompt: int,
    **sampling: Any,
) -> None:
    engine = Engine(version, model_seed=model_seed, coarse=coarse, keep_ties=keep_ties, fp64=fp64)
    report = replay(engine.case(prompt=prompt, seed=seed, **sampling))
    assert report.verdict is not ReplayVerdict.INCONSISTENT, render_text(report)
    assert not [f for f in report.findings if f.severity.value == "error"]
    if seed not in (None, -1) and sampling["logprobs"] == 48:
        assert set(report.rows["undecidable_reasons"]) <= {"gap_below_tolerance"}


def test_all_but_a_few_partly_covered_rows_are_decided() -> None:
    case = Engine().case(top_k=30, logprobs=10, max_tokens=400)
    rows = replay(case).rows
    assert rows["mismatch"] == 0
    assert rows["exact"] > 300
    assert set(rows["undecidable_reasons"]) == {"mask_not_covered"}


def test_bounds_also_refute() -> None:
    case = Engine().case(top_k=30, logprobs=10, max_tokens=400)
    case["request"]["sampling_params"]["seed"] += 1
    assert replay(case).rows["mismatch"] > 100


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": None}, "no_seed"),
        ({"seed": -1}, "no_seed"),
        ({"logprobs": None}, "no_logprobs"),
    ],
)
def test_missing_evidence_leaves_a_response_unproven(change: Case, reason: str) -> None:
    report = replay(Engine().case(**{"logprobs": 20, **change}))
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert report.rows["undecidable_reasons"].keys() == {reason}
    assert report.rows["exact"] == report.choices[0]["singleton_rows"]


def test_an_unknown_prompt_length_leaves_a_response_unproven() -> None:
    case = Engine().case(logprobs=20)
    case["request"]["content_parts"] = [{"type": "image_url", "url": "http://x"}]
    del case["response"]["usage"]
    assert replay(case).rows["undecidable_reasons"].keys() == {"no_prompt_length"}


def test_a_sampled_id_outside_its_mask_needs_no_seed_to_be_refuted() -> None:
    case = Engine().case(logprobs=12, seed=None)
    drop_the_sampled_id(case)
    report = replay(case)
    assert report.rows["mismatch"] == 1
    assert report.verdict is ReplayVerdict.INCONSISTENT


def test_choices_that_were_requests_of_their_own_are_diagnosed() -> None:
    case = Engine().case(n=2, logprobs=20, max_tokens=30)
    own = Engine().case(logprobs=20, max_tokens=30)
    case["response"]["choices"][1] = {**choice_of(own), "index": 1}
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert "request's seed itself" in finding.message


def test_children_of_one_request_have_their_own_seeds() -> None:
    case = Engine().case(n=3, logprobs=20)
    assert replay(case).verdict is ReplayVerdict.CONSISTENT
    case["response"]["choices"][0]["index"] = 1
    case["response"]["choices"][1]["index"] = 0
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT


@pytest.mark.parametrize("temperature", [1e-6, 0.001, 0.009])
def test_a_tiny_temperature_is_the_one_vllm_raises_it_to(temperature: float) -> None:
    case = Engine(coarse=True).case(temperature=0.01, logprobs=20, max_tokens=30)
    case["request"]["sampling_params"]["temperature"] = temperature
    assert replay(case).verdict is not ReplayVerdict.INCONSISTENT


def test_greedy_request_is_not_the_one_that_was_answered() -> None:
    case = Engine().case(logprobs=20)
    case["request"]["sampling_params"].update(temperature=0, top_k=-1)
    report = replay(case)
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert report.rows["undecidable_reasons"].keys() == {"greedy"}
    assert rules_of(report) == {"replay-request"}
