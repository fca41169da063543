"""Statistics as part of a report."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.errors import InvalidEnvelope
from app.replay.report import ReplayVerdict, render_text, replay
from tests.replay.engine import Engine, chunks_of

Case = dict[str, Any]
IDS = {f"replay-statistics-{name}" for name in ("pit", "likelihood", "ranks")}


def redrawn(case: Case, power: float, seed: int = 0) -> Case:
    """The same rows, on their masks, with tokens drawn from the rows raised to a power."""
    rng = np.random.default_rng(seed)
    for choice in case["response"]["choices"]:
        on_mask: list[float] = []
        for row, (mask, entry) in enumerate(
            zip(choice["sampling_mask"], choice["logprobs"]["content"], strict=True)
        ):
            known = {top["token_id"]: top["logprob"] for top in entry["top_logprobs"]}
            logprobs = np.array([known[token] for token in mask])
            on_mask += logprobs.tolist()
            weights = np.exp(power * (logprobs - logprobs.max()))
            choice["token_ids"][row] = int(rng.choice(mask, p=weights / weights.sum()))
        choice["logprobs"] = {"on_mask": on_mask}
    return case


@cache
def _text(rows: int, n: int) -> str:
    return json.dumps(Engine().case(seed=None, logprobs=8, max_tokens=rows, n=n))


def unseeded(rows: int = 600, n: int = 1) -> Case:
    case: Case = json.loads(_text(rows, n))
    return case


def test_honest_unseeded_rows_stay_unproven_and_say_how_strong_the_evidence_is() -> None:
    report = replay(unseeded(n=2))
    assert report.verdict is ReplayVerdict.UNPROVEN
    statistics = report.as_json()["statistics"]
    assert statistics["tested"]
    assert statistics["rows"] + sum(statistics["rows_left_out"].values()) == 1200
    assert set(statistics["tests"]) == {"pit", "likelihood", "ranks"}
    assert statistics["p_value"] > 1e-3
    below, above = statistics["temperature_told_apart"].values()
    assert 0.5 <= below < 1 < above <= 2
    assert "nothing speaks against" in statistics["conclusion"]
    assert set(report.checks) >= IDS
    assert "nothing speaks against" in render_text(report)


@pytest.mark.parametrize(
    ("power", "test"), [(0.5, "likelihood"), (2.0, "likelihood"), (50.0, "pit"), (50.0, "ranks")]
)
def test_draws_from_another_distribution_are_refuted(power: float, test: str) -> None:
    report = replay(redrawn(unseeded(), power))
    assert report.verdict is ReplayVerdict.INCONSISTENT
    finding = next(f for f in report.findings if f.rule == f"replay-statistics-{test}")
    assert finding.evidence["p_value"] <= 1e-6 / 3
    assert report.checks[finding.rule]["failed"] == 1
    assert "do not look drawn" in render_text(report)


def test_redrawn_at_their_own_distribution_they_are_not_refuted() -> None:
    report = replay(redrawn(unseeded(), 1.0))
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert not report.findings


def test_few_rows_say_that_they_are_few() -> None:
    report = replay(unseeded(rows=2))
    assert "too few" in report.as_json()["statistics"]["conclusion"]


def test_form_and_chunking_do_not_change_the_result() -> None:
    whole = unseeded(rows=60)
    streamed = {**whole, "response": chunks_of(whole, [7, 2])}
    assert replay(streamed).as_json()["statistics"] == replay(whole).as_json()["statistics"]


def test_what_the_draw_proves_is_not_tested_unless_asked() -> None:
    case = Engine().case(logprobs=8, max_tokens=100)
    statistics = replay(case).as_json()["statistics"]
    assert not statistics["tested"]
    assert statistics["conclusion"] == "the seeded draw decides the rows"
    assert not IDS & set(replay(case).checks)
    case["options"] = {"statistics": True}
    asked = replay(case)
    assert asked.as_json()["statistics"]["tested"]
    assert asked.verdict is ReplayVerdict.CONSISTENT


def test_statistics_can_be_left_out() -> None:
    case = {**unseeded(rows=20), "options": {"statistics": False}}
    assert replay(case).as_json()["statistics"]["conclusion"] == "statistics were not asked for"


def test_rows_that_a_seed_leaves_open_are_tested() -> None:
    case = Engine().case(top_k=30, logprobs=10, max_tokens=300)
    statistics = replay(case).as_json()["statistics"]
    assert statistics["tested"]
    assert statistics["rows_partly_known"] > 200


@pytest.mark.parametrize(
    ("sampling", "options", "why"),
    [
        ({"temperature": 0}, {}, "greedy"),
        ({"trace_decode_token_ids": [1]}, {}, "forces"),
        ({"logit_bias": {"3": float("inf")}}, {}, "infinite logit bias"),
        ({}, {"speculative": True, "rejection_sample_method": "synthetic"}, "synthetic"),
        ({}, {"speculative": True, "rejection_sample_method": "fly"}, "fly"),
    ],
)
def test_tokens_that_are_not_drawn_from_rows_are_not_tested(
    sampling: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    case = unseeded(rows=30)
    case["request"]["sampling_params"].update(sampling)
    case["options"] = options
    statistics = replay(case).as_json()["statistics"]
    assert not statistics["tested"]
    assert why in statistics["conclusion"]


@pytest.mark.parametrize("method", ["standard", "block"])
def test_lossless_speculation_is_tested(method: str) -> None:
    case = unseeded(rows=30)
    case["options"] = {"speculative": True, "rejection_sample_method": method}
    assert replay(case).as_json()["statistics"]["tested"]


def test_without_logprobs_nothing_can_be_tested() -> None:
    case = Engine().case(seed=None, max_tokens=20)
    statistics = replay(case).as_json()["statistics"]
    assert not statistics["tested"]
    assert statistics["rows_left_out"]["no_logprobs"] > 0


def test_false_alarm_rate_decides() -> None:
    case = redrawn(unseeded(rows=300), 0.7, seed=3)
    strict = replay(case)
    assert strict.verdict is ReplayVerdict.UNPROVEN
    assert "unusual" in strict.as_json()["statistics"]["conclusion"]
    case["options"] = {"false_alarm_rate": 1e-2}
    assert replay(case).verdict is ReplayVerdict.INCONSISTENT


@pytest.mark.parametrize("rate", [0, 0.2, -1, "1e-6"])
def test_a_false_alarm_rate_out_of_range_is_refused(rate: Any) -> None:
    case = {**unseeded(rows=2), "options": {"false_alarm_rate": rate}}
    with pytest.raises(InvalidEnvelope) as caught:
        replay(case)
    assert caught.value.problems[0].pointer == "/options/false_alarm_rate"


def test_honest_reports_are_not_refuted_at_a_rate_of_one_in_a_hundred() -> None:
    refuted = 0
    for seed in range(150):
        case = redrawn(
            Engine(model_seed=seed).case(seed=None, logprobs=8, max_tokens=12), 1.0, seed
        )
        case["options"] = {"false_alarm_rate": 0.01}
        refuted += replay(case).verdict is ReplayVerdict.INCONSISTENT
    assert refuted <= 7
