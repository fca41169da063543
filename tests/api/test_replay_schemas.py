"""The models of replay answers allow no undeclared member, and real answers fit them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.api.replay_schemas import ReplayReport, ReplayRow
from app.replay.report import REPORT_SCHEMA
from app.replaying import replay_case, report_lines
from tests.replay.engine import Engine

CASES: dict[str, dict[str, Any]] = {
    "proven": {},
    "unseeded": {"seed": None, "max_tokens": 60},
    "without logprobs": {"logprobs": None},
    "partly covered": {"top_k": 20, "logprobs": 4},
    "greedy": {},
    "no tokens": {"max_tokens": 0},
    "several": {"n": 3, "seed": None},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "speculative": {"speculative": True},
    "statistics": {"statistics": True, "false_alarm_rate": 0.01},
    "resample": {"resample": {"draws": 5}},
    "resample without ids": {"resample": {"draws": 5, "ids": False}},
    "tampered": {"vocab_size": 4},
}


def answer(name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    sampling = {"top_k": 8, "logprobs": 8, "max_tokens": 12, **CASES[name]}
    case = {"id": [1], **Engine().case(**sampling), "options": options}
    if name == "greedy":
        case["request"]["sampling_params"]["temperature"] = 0
    lines = report_lines(replay_case(case, rows=True), 3)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", CASES)
def test_every_report_and_row_fits_its_model(name: str, options: str) -> None:
    report, *rows = answer(name, OPTIONS[options])
    assert report["schema"] == REPORT_SCHEMA
    ReplayReport.model_validate(report)
    assert len(rows) == report["rows"]["total"]
    for row in rows:
        ReplayRow.model_validate(row)
    for outcome in ("exact", "mismatch", "undecidable", "not_replayed"):
        assert sum(row["outcome"] == outcome for row in rows) == report["rows"][outcome]


@pytest.mark.parametrize(
    "trainer", [[-0.5] * 40, {"sampled": [None] * 40}, [[-0.1] * 8] * 40, [-0.5] * 39 + [-9999.0]]
)
def test_trainer_comparisons_fit_too(trainer: Any) -> None:
    case = Engine().case(top_k=8, logprobs=8, max_tokens=40)
    case["options"] = {"trainer_logprobs": [trainer]}
    report = replay_case(case).report.as_json()
    assert ReplayReport.model_validate(report).trainer is not None


def test_a_member_that_is_not_declared_is_a_mistake() -> None:
    report = answer("proven", {})[0]
    for part in (report, report["rows"], report["choices"][0], report["statistics"]):
        part["more"] = 1
        with pytest.raises(ValidationError):
            ReplayReport.model_validate(report)
        del part["more"]
    ReplayReport.model_validate(report)
