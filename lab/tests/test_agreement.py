"""Verdicts on the seed cases, against the real answer of every version in the lab."""

from __future__ import annotations

import pytest

from lab.agreement import Agreement, Comparison, compare
from lab.environment import Lab
from lab.seed_cases import seed_cases

# The draft model's config.json is not part of an envelope.
NOT_TOLD = {"draft model on cuda-h100", "draft model on cpu"}
# Refusals of other checks than the sampling mask's, the runner's and the parser's.
OTHER_CHECKS = (
    "Arctic Inference is required",
    "Non-MoE models do not support external data parallel",
    "Sleep mode is not supported",
    "User-specified max_model_len",
    "World size (2) is larger than",
)


@pytest.fixture(scope="module", params=Lab.default().versions())
def compared(request: pytest.FixtureRequest) -> tuple[Comparison, ...]:
    return tuple(compare(str(request.param), seed_cases()))


def test_the_gate_gives_the_verdict_of_vllm(compared: tuple[Comparison, ...]) -> None:
    different = [
        comparison
        for comparison in compared
        if comparison.agreement is not Agreement.SAME
        and comparison.case.id not in NOT_TOLD
        and not (comparison.agreement is Agreement.MISSED and _is_another_check(comparison))
    ]

    assert [str(comparison) for comparison in different] == []
    assert len(compared) > 80


def _is_another_check(comparison: Comparison) -> bool:
    return any(text in comparison.reason for text in OTHER_CHECKS)
