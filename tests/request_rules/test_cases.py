"""Requests that were reported to go wrong, each with its right verdict on every version."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.request_rules.checker import RequestChecker
from tests.request_rules.serving import served_by_command

LIBRARY = CatalogueLibrary()
CASES = [
    json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()
]
# Reported of a version that refused 0; every version here takes both spellings of "off".
_TAKEN_SINCE = {"a51": "accept"}
_ROUTES = {"SamplingParams": "/inference/v1/generate"}


def _command(server: dict[str, Any]) -> str:
    words = ["vllm", "serve", "m"]
    if server.get("return_sampling_mask"):
        server = {**server, "logprobs_mode": "processed_logprobs"}
    for name, value in server.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return shlex.join(words)


def _verdict(case: dict[str, Any], version: str, *, as_text: bool = False) -> str:
    served = served_by_command(_command(case["server"]), version, case.get("model_config"))
    body = case["body"]
    if case["endpoint"] == "SamplingParams":
        body = {"token_ids": [1], "sampling_params": body}
    if body.get("prompt") == "<100k tokens>":
        body = {**body, "prompt": "word and " * 100_000 if as_text else [7] * 100_000}
    route = _ROUTES.get(case["endpoint"], case["endpoint"])
    examination = RequestChecker(served).examine(route, json.dumps(body).encode())
    assert examination.crashed in ([], ())
    if examination.refusal is not None:
        return "reject"
    return "warn" if examination.warnings else "accept"


@pytest.mark.parametrize("version", LIBRARY.versions)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_reported_requests_get_their_verdict(case: dict[str, Any], version: str) -> None:
    expected = _TAKEN_SINCE.get(case["id"], case["expected"])
    assert _verdict(case, version) == expected


def test_long_texts_are_too_dear_as_well() -> None:
    case = next(case for case in CASES if case["id"] == "a31")
    assert _verdict(case, "0.32.0", as_text=True) == "reject"
