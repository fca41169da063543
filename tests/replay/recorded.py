"""Responses recorded from real servers, as replay cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.replay.report import Report

SAMPLES = Path(__file__).parent / "samples"
SAMPLED_VERSIONS = ["0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"]
ALL_VERSIONS = [*SAMPLED_VERSIONS, "0.33.0"]

Case = dict[str, Any]


def sample(version: str) -> Case:
    return {
        "id": f"sample-{version}",
        "vllm_version": version,
        "request": json.loads((SAMPLES / "request.json").read_text()),
        "response": json.loads((SAMPLES / f"{version}.json").read_text()),
    }


def rules_of(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}
