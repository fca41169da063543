"""What real vLLM answers with an empty 500, the gate answers with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.main import create_app
from lab.server import Server
from lab.tests.rollouts import GENERATE, gate_settings
from tests.support import serving


async def _ask_both(server: Server, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
    async with serving(create_app(gate_settings(server))) as url, httpx.AsyncClient() as client:
        direct = await client.post(server.url + GENERATE, json=body)
        gated = await client.post(url + GENERATE, json=body)
    return direct, gated


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        ({"temperature": 0, "top_k": 8}, "sampling-mask-temperature"),
        ({"temperature": 1, "top_k": -1}, "sampling-mask-top-k"),
        ({"temperature": 1}, "sampling-mask-top-k"),
    ],
)
def test_the_gate_names_the_rule_where_vllm_says_nothing(
    vllm: Server, sampling: dict[str, Any], rule: str
) -> None:
    body = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 2, **sampling}}

    direct, gated = asyncio.run(_ask_both(vllm, body))

    assert (direct.status_code, direct.json()["error"]["message"]) == (500, "")
    assert (gated.status_code, gated.json()["error"]["rule"]) == (400, rule)
