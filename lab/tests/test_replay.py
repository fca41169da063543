"""Real vLLM behind the gate: every row it draws is repeated exactly."""

from __future__ import annotations

import pytest

from lab.server import Server
from lab.tests.rollouts import (
    FEATURES,
    OFTEN_DRAFTED,
    Tally,
    collect,
    generation_requests,
    replayed,
)

GENERATIONS = 64
TOKENS = 20
MOST_UNDECIDABLE = 0.005


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
    requests = generation_requests(12, variation=3, tokens=40, **OFTEN_DRAFTED)

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
