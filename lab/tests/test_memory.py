"""The recorded answers about memory are still vLLM's."""

from __future__ import annotations

import json

from lab.environment import Lab
from lab.memory import KEPT, ask, cases, row
from lab.tests.conftest import VERSION

ASKED = ("llama3-8b", "qwen3.5-9b", "falcon-h1-7b", "mamba-2.8b", "gemma3-4b-hub")


def test_vllm_still_plans_as_recorded() -> None:
    asked = [
        case
        for case in cases(VERSION)
        if case["id"][0] in ASKED and case["id"][1] in ([], ["-tp", "2"])
    ]
    recorded = [json.loads(line) for line in (KEPT / f"{VERSION}.jsonl").read_text().splitlines()]

    answers = [row(answer) for answer in ask(Lab.default(), VERSION, asked)]

    assert len(answers) > len(ASKED)
    for answer in answers:
        assert answer in recorded
