"""The gate refuses nothing that real vLLM answers, and what ends its engine never reaches it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from app.main import create_app
from lab.requests import OURS, ask
from lab.server import Server
from lab.tests.rollouts import GENERATE, gate_settings
from tests.support import serving

_COUNT = 120
_KILLERS: tuple[dict[str, Any], ...] = (
    {"seed": 2**63},
    {"seed": 2**63 - 1, "n": 2},
    {"allowed_token_ids": [1] * 1025},
    {"logit_bias": {str(i): 1 for i in range(1023)} | {str(i): 1.0 for i in range(1024, 1030)}},
    {"stop_token_ids": list(range(129)), "min_tokens": 1},
    {"bad_words": [f"word{i}" * 16 for i in range(100)]},
)


def test_no_generated_request_is_refused_that_vllm_answers(default_vllm: Server) -> None:
    answers = ask(default_vllm, "default", _COUNT, seed=11)
    false = [a for a in answers if a.is_false_rejection]
    assert false == []
    refused = Counter(rule for answer in answers for rule in answer.rules)
    # The requests reach the edges: these are among what both refuse.
    assert {"request-context-length", "sampling-mask-top-k", "request-model"} <= set(refused)
    assert not OURS & set(refused)
    told = [a for a in answers if a.status >= 400 and a.rules]
    assert len(told) > _COUNT // 6


@pytest.mark.parametrize("sampling", _KILLERS, ids=lambda sampling: next(iter(sampling)))
def test_requests_that_end_the_engine_are_refused(
    default_vllm: Server, sampling: dict[str, Any]
) -> None:
    async def through_the_gate() -> tuple[httpx.Response, httpx.Response]:
        app = create_app(gate_settings(default_vllm))
        async with serving(app) as url, httpx.AsyncClient(timeout=60) as client:
            body = {
                "token_ids": [1, 2],
                "sampling_params": {"top_k": 5, "max_tokens": 1, **sampling},
            }
            refused = await client.post(url + GENERATE, json=body)
            body["sampling_params"] = {"top_k": 5, "max_tokens": 1}
            return refused, await client.post(url + GENERATE, json=body)

    refused, after = asyncio.run(through_the_gate())
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)
    assert refused.json()["error"]["rule"].startswith("request-")
    assert after.status_code == 200
