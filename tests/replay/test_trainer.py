"""A trainer's logprobs against the sampler's."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.errors import InvalidEnvelope
from app.replay.report import ReplayVerdict, render_text, replay
from app.replay.trainer_diagnosis import ratios
from tests.replay.engine import Engine

Case = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """The sampler's masks with their logprobs, row by row."""

    masks: list[list[int]]
    logprobs: list[list[float]]
    token_ids: list[int]


def sampler(case: Case) -> Side:
    (choice,) = case["response"]["choices"]
    logprobs = []
    for mask, entry in zip(choice["sampling_mask"], choice["logprobs"]["content"], strict=True):
        known = {top["token_id"]: top["logprob"] for top in entry["top_logprobs"]}
        logprobs.append([known[token] for token in mask])
    return Side(choice["sampling_mask"], logprobs, choice["token_ids"])


@cache
def _text(rows: int, top_p: float) -> str:
    return json.dumps(Engine().case(logprobs=8, max_tokens=rows, top_p=top_p))


def exchange(rows: int = 400, top_p: float = 0.9) -> Case:
    case: Case = json.loads(_text(rows, top_p))
    return case


def compared(case: Case, trainer: Any, **options: Any) -> dict[str, Any]:
    case["options"] = {"trainer_logprobs": [trainer], **options}
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    body: dict[str, Any] = report.as_json()["trainer"]
    warned = [f.message for f in report.findings if f.rule == "replay-trainer"]
    quiet = body["diagnosis"] in ("noise", "too_few_tokens")
    assert warned == ([] if quiet else [body["explanation"]])
    assert body["diagnosis"] in render_text(report)
    return body


def over_mask(
    side: Side, *, noise: float = 0.0, kept: float = 1.0, slope: float = 1.0
) -> list[list[float]]:
    """A trainer's logprobs on the masks: a row's kept mass varies around `kept`."""
    rng = np.random.default_rng(0)
    rows = []
    for row in side.logprobs:
        logits = slope * np.array(row) + noise * rng.normal(size=len(row))
        mass = kept ** rng.uniform(0.5, 1.5)
        rows.append((logits - np.log(np.exp(logits).sum()) + np.log(mass)).tolist())
    return rows


def of_sampled(side: Side, rows: list[list[float]]) -> list[float]:
    return [
        row[mask.index(token)]
        for row, mask, token in zip(rows, side.masks, side.token_ids, strict=True)
    ]


def test_the_same_logprobs_are_no_more_than_noise() -> None:
    case = exchange()
    body = compared(case, sampler(case).logprobs)
    assert body["diagnosis"] == "noise"
    assert body["tokens"] == 400
    assert body["ratio"]["mean"] == pytest.approx(1.0)
    assert body["ratio"]["share_outside"] == 0.0
    assert body["k3"] == pytest.approx(0.0, abs=1e-12)
    assert body["mask_exponent"] == pytest.approx(1.0)
    assert body["kept_mass"]["geometric_mean"] == pytest.approx(1.0, abs=1e-6)


def test_bf16_sized_noise_is_called_so() -> None:
    case = exchange()
    body = compared(case, over_mask(sampler(case), noise=0.04))
    assert body["diagnosis"] == "noise"
    assert 0 < body["k3"] < 1e-3


@pytest.mark.parametrize("kept", [0.895, 0.965])
def test_log_kept_mass_explains_an_offset(kept: float) -> None:
    case = exchange()
    body = compared(case, over_mask(sampler(case), noise=0.03, kept=kept))
    assert body["diagnosis"] == "normalised_over_vocabulary"
    assert body["log_ratio"]["mean"] == pytest.approx(math.log(kept), abs=0.01)
    assert body["kept_mass"]["mean_log"] == pytest.approx(math.log(kept), abs=0.005)
    assert body["over_mask"]["log_ratio"]["mean"] == pytest.approx(0.0, abs=0.01)
    assert body["over_mask"]["ratio"]["share_outside"] < 0.08
    assert len(body["log_kept_mass"][0]) == 400


def test_masks_of_one_token_betray_the_normalisation() -> None:
    case = exchange(top_p=0.5)
    side = sampler(case)
    assert sum(len(mask) == 1 for mask in side.masks) >= 8
    trainer = of_sampled(side, over_mask(side, noise=0.03, kept=0.9))
    body = compared(case, trainer)
    assert body["diagnosis"] == "normalised_over_vocabulary"
    assert "alone in their mask" in body["explanation"]
    assert "kept_mass" not in body


def test_a_statement_that_the_numbers_refute_is_said() -> None:
    case = exchange()
    body = compared(case, over_mask(sampler(case), kept=0.9), trainer_normalisation="mask")
    assert "said to be over the mask" in body["explanation"]


@pytest.mark.parametrize(
    ("stated", "diagnosis"),
    [
        ("vocabulary", "normalised_over_vocabulary"),
        ("unknown", "unexplained"),
    ],
)
def test_without_masks_or_singletons_an_offset_is_explained_by_the_statement(
    stated: str, diagnosis: str
) -> None:
    case = Engine().case(logprobs=8, max_tokens=300)
    side = sampler(case)
    trainer = [value - 0.1 for value in of_sampled(side, side.logprobs)]
    body = compared(case, trainer, trainer_normalisation=stated)
    assert body["diagnosis"] == diagnosis
    assert "would tell" in body["explanation"]


@pytest.mark.parametrize("slope", [0.7, 1.3])
def test_another_temperature_shows_as_an_exponent(slope: float) -> None:
    case = exchange()
    body = compared(case, over_mask(sampler(case), noise=0.03, slope=slope, kept=0.95))
    assert body["diagnosis"] == "other_temperature"
    assert body["mask_exponent"] == pytest.approx(slope, abs=0.03)


def test_scatter_without_an_explanation_is_called_unexplained() -> None:
    case = exchange()
    body = compared(case, over_mask(sampler(case), noise=0.3))
    assert body["diagnosis"] == "unexplained"
    assert body["ratio"]["share_outside"] > 0.08


def test_few_tokens_say_nothing() -> None:
    case = exchange(rows=5)
    assert compared(case, sampler(case).logprobs)["diagnosis"] == "too_few_tokens"


def test_ratios_are_raw() -> None:
    log_ratio = np.log(np.array([0.5, 1.0, 1.0, 30.0]))
    summary = ratios(log_ratio, (0.9, 1.1))
    assert summary["ratio"]["mean"] == pytest.approx(32.5 / 4)
    assert summary["ratio"]["median"] == pytest.approx(1.0)
    assert summary["ratio"]["min"] == pytest.approx(0.5)
    assert summary["ratio"]["max"] == pytest.approx(30.0)
    assert summary["ratio"]["share_outside"] == 0.5
    assert summary["k1"] == pytest.approx(-log_ratio.mean())
    r = np.exp(log_ratio)
    assert summary["k3"] == pytest.approx(((r - 1) - np.log(r)).mean())


def test_ratios_of_no_tokens_and_of_infinite_ones_are_json() -> None:
    assert ratios(np.array([]), (0.9, 1.1))["ratio"] is None
    assert math.isfinite(ratios(np.array([5000.0]), (0.9, 1.1))["ratio"]["max"])


def test_missing_and_impossible_tokens_are_counted() -> None:
    case = exchange(rows=30)
    side = sampler(case)
    trainer: list[float | None] = [*of_sampled(side, side.logprobs)]
    trainer[3], trainer[4], trainer[5] = None, -9999.0, float("-inf")
    body = compared(case, trainer)
    assert body["tokens"] == 27
    assert body["tokens_without_logprob"] == 1
    assert body["tokens_without_probability"] == 2


def test_tokens_that_the_engine_did_not_sample_are_not_compared() -> None:
    case = exchange(rows=30)
    side = sampler(case)
    case["response"]["choices"][0]["loss_mask"] = [True] * 20 + [False] * 10
    body = compared(case, of_sampled(side, side.logprobs))
    assert body["tokens"] == 20
    assert body["tokens_without_logprob"] == 10


def test_the_band_is_the_callers() -> None:
    case = exchange()
    body = compared(case, over_mask(sampler(case), noise=0.04), trainer_band=[0.5, 2.0])
    assert body["ratio"]["band"] == [0.5, 2.0]
    assert body["ratio"]["share_outside"] == 0.0


def test_packed_and_nested_logprobs_give_the_same() -> None:
    case = exchange(rows=60)
    rows = over_mask(sampler(case), noise=0.03, kept=0.9)
    flat = [value for row in rows for value in row]
    data = np.array(flat, "<f8").tobytes()
    packed = {"on_mask": {"data": base64.b64encode(data).decode(), "dtype": "float64"}}
    assert compared(exchange(rows=60), packed) == compared(case, rows)


def test_an_engines_own_logprobs_are_not_needed_where_a_mask_has_one_id() -> None:
    case = exchange(top_p=0.5)
    side = sampler(case)
    case["response"]["choices"][0]["logprobs"] = None
    case["options"] = {"trainer_logprobs": [of_sampled(side, over_mask(side, kept=0.9))]}
    body = replay(case).as_json()["trainer"]
    assert body["tokens"] == sum(len(mask) == 1 for mask in side.masks)
    assert body["diagnosis"] == "normalised_over_vocabulary"


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"trainer_logprobs": []}, "/options/trainer_logprobs"),
        ({"trainer_logprobs": [[-1.0]]}, "/options/trainer_logprobs/0"),
        ({"trainer_logprobs": [[[-1.0]] * 12]}, "/options/trainer_logprobs/0/0"),
        ({"trainer_logprobs": [[-1.0, [-1.0]]]}, "/options/trainer_logprobs/0/0"),
        ({"trainer_logprobs": [{}]}, "/options/trainer_logprobs/0"),
        ({"trainer_logprobs": [{"on_mask": [-1.0]}]}, "/options/trainer_logprobs/0"),
        ({"trainer_logprobs": [["x"]]}, "/options/trainer_logprobs/0/0"),
        ({"trainer_logprobs": [{"all": []}]}, "/options/trainer_logprobs/0"),
        ({"trainer_normalisation": "top_p"}, "/options/trainer_normalisation"),
        ({"trainer_band": [1.1, 0.9]}, "/options/trainer_band"),
        ({"trainer_band": [0.9]}, "/options/trainer_band"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(options: dict[str, Any], pointer: str) -> None:
    case = {**exchange(rows=12), "options": options}
    with pytest.raises(InvalidEnvelope) as caught:
        replay(case)
    assert caught.value.problems[0].pointer == pointer


def test_nan_is_no_logprob() -> None:
    case = {**exchange(rows=2), "options": {"trainer_logprobs": [[float("nan"), -1.0]]}}
    with pytest.raises(InvalidEnvelope, match="nan"):
        replay(case)


def test_masks_in_another_order_need_logprobs_in_that_order() -> None:
    case = exchange(rows=60)
    side = sampler(case)
    rows = over_mask(side, noise=0.03, kept=0.9)
    sorted_report = compared(case, rows)
    (choice,) = case["response"]["choices"]
    choice["sampling_mask"] = [mask[::-1] for mask in side.masks]
    backwards = [row[::-1] for row in rows]
    case["options"]["trainer_logprobs"] = [backwards]
    with pytest.raises(InvalidEnvelope, match="do not ascend"):
        replay(case)
    choice["logprobs"] = {"on_mask": [value for row in side.logprobs for value in row[::-1]]}
    body = replay(case).as_json()["trainer"]
    for name in ("log_ratio", "kept_mass"):
        assert body[name] == pytest.approx(sorted_report[name])
    assert body["log_kept_mass"][0] == pytest.approx(sorted_report["log_kept_mass"][0])
