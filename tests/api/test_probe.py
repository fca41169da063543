"""POST /replay/probe, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.api.probe import ProbeReportModel
from app.main import create_app
from app.settings import Settings
from tests.probe.scene import simulator
from tests.relay.harness import client_of as raw_client_of
from tests.relay.harness import eventually
from tests.support import client_of, serving
from tests.tampering import TokenSwapper

SMALL = {"requests": 4, "max_tokens": 6, "prompt_lengths": [3, 5], "concurrency": 2}


@asynccontextmanager
async def gate_to(app: Any, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(app) as backend,
        serving(create_app(Settings(backend_url=backend, **settings))) as gate,
        httpx.AsyncClient(base_url=gate, trust_env=False, timeout=30) as client,
    ):
        yield client


@pytest.mark.asyncio
async def test_the_configured_backend_is_probed() -> None:
    async with gate_to(simulator()) as client:
        response = await client.post("/replay/probe", json=SMALL)
        text = await client.post("/replay/probe", json=SMALL, headers={"accept": "text/plain"})
    body = response.json()
    ProbeReportModel.model_validate(body)
    assert response.status_code == 200
    assert (body["schema"], body["verdict"]) == ("vllm-admission.probe/1", "consistent")
    assert text.text.startswith("consistent: vLLM 0.32.0")


@pytest.mark.asyncio
async def test_the_body_may_be_left_out() -> None:
    async with gate_to(simulator(), probe_max_requests=3, probe_max_tokens=5) as client:
        body = (await client.post("/replay/probe")).json()
    assert (body["verdict"], body["requests"]["planned"]) == ("consistent", 3)


@pytest.mark.asyncio
async def test_tampering_answers_with_the_status_asked_for() -> None:
    async with gate_to(simulator(TokenSwapper)) as client:
        response = await client.post("/replay/probe?on_reject=409", json=SMALL)
    assert (response.status_code, response.json()["verdict"]) == (409, "inconsistent")


@pytest.mark.asyncio
async def test_the_callers_authorization_goes_to_the_backend() -> None:
    async with gate_to(simulator(api_keys=("k",))) as client:
        refused = await client.post("/replay/probe", json=SMALL)
        headers = {"authorization": "Bearer k"}
        accepted = await client.post("/replay/probe", json=SMALL, headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (
        502,
        "application/problem+json",
    )
    assert "API key" in refused.json()["detail"]
    assert accepted.json()["verdict"] == "consistent"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"requests": 0}, "/requests"),
        ({"requests": "4"}, "/requests"),
        ({"requests": 257}, "/requests"),
        ({"max_tokens": 5000}, "/max_tokens"),
        ({"concurrency": 1000}, "/concurrency"),
        ({"token_ids": [9, 3]}, "/token_ids"),
        ({"token_ids": [1]}, "/token_ids"),
        ({"prompt_lengths": []}, "/prompt_lengths"),
        ({"nonsense": 1}, "/nonsense"),
    ],
)
@pytest.mark.asyncio
async def test_options_beyond_the_limits_are_pointed_to(body: Any, pointer: str) -> None:
    async with client_of(create_app(Settings(backend_url="http://127.0.0.1:1"))) as client:
        response = await client.post("/replay/probe", json=body)
    assert response.status_code == 400
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
@pytest.mark.asyncio
async def test_a_broken_body_is_refused(body: bytes) -> None:
    async with client_of(create_app(Settings(backend_url="http://127.0.0.1:1"))) as client:
        assert (await client.post("/replay/probe", content=body)).status_code == 400


@pytest.mark.asyncio
async def test_no_backend_is_503_and_a_dead_one_502() -> None:
    async with client_of(create_app(Settings())) as client:
        none = await client.post("/replay/probe")
    async with client_of(create_app(Settings(backend_url="http://127.0.0.1:1"))) as client:
        dead = await client.post("/replay/probe")
    assert (none.status_code, dead.status_code) == (503, 502)
    assert "VLLM_ADMISSION_BACKEND_URL" in none.json()["detail"]
    assert dead.json()["type"].endswith("backend-unreachable")


@pytest.mark.asyncio
async def test_one_probe_runs_at_a_time() -> None:
    async with gate_to(simulator(token_delay=0.05)) as client:
        first = asyncio.create_task(client.post("/replay/probe", json=SMALL))
        await asyncio.sleep(0.2)
        second = await client.post("/replay/probe", json=SMALL)
        assert (await first).json()["verdict"] == "consistent"
        third = await client.post("/replay/probe", json=SMALL)
    assert second.status_code == 503
    assert second.json()["type"].endswith("probe-running")
    assert int(second.headers["retry-after"]) > 0
    assert third.status_code == 200


@pytest.mark.asyncio
async def test_a_client_that_leaves_ends_the_probe() -> None:
    backend = simulator(token_delay=0.05)
    engine = backend.state.engine
    async with gate_to(backend) as client:
        body = json.dumps({**SMALL, "requests": 200, "max_tokens": 200}).encode()
        port = client.base_url.port
        assert port is not None
        async with raw_client_of(port) as raw:
            await raw.send("POST", "/replay/probe", body=body)
            await eventually(lambda: engine.running)
            raw.leave()
        await eventually(lambda: not engine.running)
        assert engine.finished["abort"] >= 1
        again = await client.post("/replay/probe", json={**SMALL, "requests": 1, "max_tokens": 1})
    assert again.status_code == 200


@pytest.mark.asyncio
async def test_what_the_admitted_configuration_says_counts() -> None:
    command = (
        "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs "
        "--enable-scale-out --use-fp64-gumbel"
    )
    settings = {"serve_config": command, "vllm_version": "0.32.0"}
    async with gate_to(simulator(use_fp64_gumbel=True), **settings) as client:
        body = (await client.post("/replay/probe", json=SMALL)).json()
    assert body["verdict"] == "consistent"
