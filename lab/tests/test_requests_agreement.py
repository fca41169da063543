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
    {"logit_bias": {f"{i}.0": 1 for i in range(1025)}},
    {"stop_token_ids": list(range(129)), "min_tokens": 1},
    # Beside the one end-of-sequence id they are 129.
    {"stop_token_ids": list(range(128)), "min_tokens": 1},
    {"max_tokens": 2**31 - 1},
    {"max_tokens": 2**62, "min_tokens": 2**62},
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


@pytest.mark.parametrize("sampling", _KILLERS, ids=lambda sampling: "-".join(sampling))
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


def test_bad_words_are_counted_as_vllm_counts_them(default_vllm: Server) -> None:
    """The tiny model's tokenizer has a token for each byte of such words; 1024 is the limit."""
    fits = [f"{i:04}" * 16 for i in range(16)]
    too_many = [*fits, "z"]

    async def through_the_gate() -> tuple[list[int], list[httpx.Response]]:
        async with (
            serving(create_app(gate_settings(default_vllm))) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            counts = [await counted(client, words) for words in (fits, too_many)]
            return counts, [await asked(client, words) for words in (fits, too_many, ["a"])]

    async def counted(client: httpx.AsyncClient, words: list[str]) -> int:
        questions = [{"prompt": word, "add_special_tokens": False} for word in words]
        answers = [await client.post("/tokenize", json=question) for question in questions]
        return sum(answer.json()["count"] for answer in answers)

    async def asked(client: httpx.AsyncClient, words: list[str]) -> httpx.Response:
        sampling = {"top_k": 5, "max_tokens": 1, "bad_words": words}
        return await client.post(GENERATE, json={"token_ids": [1, 2], "sampling_params": sampling})

    counts, (passed, refused, after) = asyncio.run(through_the_gate())
    assert counts == [1024, 1025]
    assert passed.status_code == 200, passed.text
    assert "x-vllm-admission-warning" not in passed.headers
    assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "request-bad-words")
    assert "at least 1025 tokens" in refused.json()["error"]["message"]
    assert after.status_code == 200
