"""Real vLLM behind the gate: every row it draws is repeated exactly."""

from __future__ import annotations

from typing import Any

import pytest

from lab.server import Server
from lab.tests.rollouts import Tally, collect, generation_requests, replayed

GENERATIONS = 64
TOKENS = 20
MOST_UNDECIDABLE = 0.005
FEATURES: dict[str, dict[str, Any]] = {
    "penalties": {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.3,
    },
    "logit bias": {"logit_bias": {"5": 3.0, "17": -4.0, "99": 2.5}},
    "structured output": {"structured_outputs": {"regex": "[a-z]{8,30}"}},
    "allowed ids and bad words": {"allowed_token_ids": list(range(10, 200)), "bad_words": ["a"]},
    "three choices": {"n": 3, "seed": 11},
    "stream": {"stream": True},
}


def test_every_decidable_row_of_plain_generations_is_exact(vllm: Server, tally: Tally) -> None:
    requests = generation_requests(GENERATIONS, variation=1, tokens=TOKENS)

    reports = replayed(vllm, collect(vllm, requests))

    assert {report.verdict for report in reports} == {"consistent"}
    rows = tally.add("plain", reports)
    assert rows["total"] == GENERATIONS * TOKENS >= 1000
    assert rows["mismatch"] == 0
    assert rows["undecidable"] <= MOST_UNDECIDABLE * rows["total"]


@pytest.mark.parametrize("feature", FEATURES)
def test_every_decidable_row_that_a_feature_shaped_is_exact(
    vllm: Server, tally: Tally, feature: str
) -> None:
    requests = generation_requests(6, variation=2, tokens=10, **FEATURES[feature])

    reports = replayed(vllm, collect(vllm, requests))

    assert {report.verdict for report in reports} == {"consistent"}
    rows = tally.add(feature, reports)
    assert rows["total"] >= 48
    assert rows["mismatch"] == rows["undecidable"] == 0


def test_every_decidable_row_under_speculative_decoding_is_explained(
    speculating_vllm: Server, tally: Tally
) -> None:
    # Three ids to choose from, so that what is drafted is often what is drawn.
    few: dict[str, Any] = {
        "allowed_token_ids": [5, 17, 99],
        "temperature": 2.0,
        "top_p": 1.0,
        "min_p": 0.0,
    }
    requests = generation_requests(12, variation=3, tokens=40, **few)

    reports = replayed(speculating_vllm, collect(speculating_vllm, requests), speculative=True)

    assert {report.verdict for report in reports} == {"consistent"}
    rows = tally.add("ngram speculation", reports)
    assert rows["total"] == 12 * 40
    assert rows["mismatch"] == rows["undecidable"] == 0


def test_a_row_of_another_seed_is_refuted(vllm: Server) -> None:
    (rollout,) = collect(
        vllm, generation_requests(1, variation=4, temperature=2.0, top_k=50, top_p=1.0)
    )
    forged = {**rollout.request["sampling_params"], "seed": 12345}
    request = {**rollout.request, "sampling_params": forged}

    (report,) = replayed(vllm, [type(rollout)(request, rollout.response)])

    assert report.verdict == "inconsistent"
    assert report.rows["mismatch"] > 5
