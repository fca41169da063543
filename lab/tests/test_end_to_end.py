"""Real vLLM, probed, and behind a gate that seeds and replays what it relays."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.probe.plan import ProbeOptions
from app.probe.run import probe
from app.relay.upstream import Backend
from app.settings import Settings
from lab.server import Server
from tests.support import serving

GENERATE = "/inference/v1/generate"
OPTIONS = ProbeOptions(
    requests=16, max_tokens=10, concurrency=8, prompt_lengths=(1, 30), max_seconds=400
)
UNSEEDED: dict[str, Any] = {
    "token_ids": [9, 10, 11],
    "sampling_params": {"top_k": 8, "logprobs": 12, "max_tokens": 8, "ignore_eos": True, "n": 3},
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.asyncio
async def test_a_probe_of_real_vllm_is_consistent(vllm: Server, seed: int) -> None:
    backend = Backend(vllm.url, connect_timeout=5, idle_timeout=120)
    try:
        report = await probe(backend, replace(OPTIONS, seed=seed))
    finally:
        await backend.aclose()
    rows = report.as_json()["rows"]
    assert report.verdict == "consistent"
    assert rows["exact"] + rows["undecidable"] == rows["total"] == 16 * 10 * 1.5
    assert rows["undecidable"] <= 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_an_injected_seed_proves_an_unseeded_rollout(vllm: Server, stream: bool) -> None:
    settings = Settings(
        backend_url=vllm.url,
        serve_config=shlex.join(["vllm", "serve", *vllm.command]),
        vllm_version=vllm.version,
        inject_seed=True,
    )
    async with (
        serving(create_app(settings)) as gate,
        httpx.AsyncClient(base_url=gate, trust_env=False, timeout=120) as client,
    ):
        response = await client.post(
            GENERATE,
            json={**UNSEEDED, "stream": stream},
            headers={"x-vllm-admission-replay": "verify"},
        )
    said = "consistent; rows=24; exact=24"
    assert response.headers["x-vllm-admission-seed"].isdigit()
    if stream:
        assert response.text.endswith(f"data: [DONE]\n\n: vllm-admission-replay {said}\n\n")
    else:
        assert response.headers["x-vllm-admission-replay"] == said
