"""What real servers answered to generated requests, kept by `python -m lab.requests --sample`.

The gate refuses nothing that they answered. Where it refused what they refused, it still does.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.request_rules.checker import RequestChecker
from tests.request_rules.serving import served_by_command

ANSWERS = [
    json.loads(line) for line in Path(__file__).with_name("answers.jsonl").read_text().splitlines()
]
_SERVE = "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve tiny --generation-config vllm --max-model-len 64"
_MASKS = f"{_SERVE} --return-sampling-mask --logprobs-mode processed_logprobs --max-num-seqs 8"
_PLAIN = f"{_SERVE} --max-num-seqs 8"
_NGRAM = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}'
_PROFILES = {
    "plain": f"{_PLAIN} --max-logprobs 30",
    "masks": _MASKS,
    "all-logprobs": f"{_PLAIN} --max-logprobs -1",
    "speculating": f"{_PLAIN} --speculative-config '{_NGRAM}'",
}
_MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_position_embeddings": 512,
    "vocab_size": 1024,
}


@cache
def _checker(version: str, profile: str) -> RequestChecker:
    return RequestChecker(served_by_command(_PROFILES[profile], version, _MODEL))


def _rules(answer: dict[str, Any]) -> list[str]:
    checker = _checker(answer["version"], answer["profile"])
    examination = checker.examine(answer["route"], answer["body"].encode())
    assert list(examination.crashed) == []
    errors = (examination.refusal or {}).get("error", {}).get("errors", ())
    return [error["rule"] for error in errors]


def test_nothing_is_refused_that_vllm_answered() -> None:
    answered = [answer for answer in ANSWERS if answer["status"] < 400]
    assert len(answered) > 50
    assert [(a["route"], a["body"], _rules(a)) for a in answered if _rules(a)] == []


@pytest.mark.parametrize("version", ["0.28.0", "0.29.0", "0.30.0", "0.32.0"])
def test_what_the_gate_refused_for_vllm_it_still_does(version: str) -> None:
    refused = [a for a in ANSWERS if a["rules"] and a["version"] == version]
    assert {rule for answer in refused for rule in answer["rules"]} >= {
        "request-context-length",
        "request-logprobs-limit",
        "request-model",
        "request-vocabulary",
        "sampling-mask-temperature",
        "sampling-mask-top-k",
    }
    assert [(a["body"], a["rules"], _rules(a)) for a in refused if _rules(a) != a["rules"]] == []
