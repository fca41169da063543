"""The request gate in the whole service, in front of the simulated backend."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client import CollectorRegistry

from app.api.proxy import RequestGate
from app.catalogue import CatalogueLibrary
from app.errors import InvalidEnvelope
from app.main import create_app
from app.serving import demo_command, simulator_of
from app.settings import Settings
from tests.support import serving

GENERATE = "/inference/v1/generate"
ACCEPTED = {
    "token_ids": [1, 2, 3],
    "sampling_params": {"temperature": 1.0, "top_k": 5, "seed": 7, "max_tokens": 6, "logprobs": 5},
}


@asynccontextmanager
async def _both(version: str = "0.32.0") -> AsyncIterator[tuple[httpx.AsyncClient, ...]]:
    """A client of the simulated backend, and one of the gate in front of it."""
    command = demo_command(version)
    async with serving(simulator_of(version, command)) as backend:
        settings = Settings(backend_url=backend, serve_config=command, vllm_version=version)
        async with (
            serving(create_app(settings)) as gate,
            httpx.AsyncClient(base_url=backend, trust_env=False) as direct,
            httpx.AsyncClient(base_url=gate, trust_env=False) as through,
        ):
            yield direct, through


def _comparable(body: bytes) -> bytes:
    """The body without what differs from one answer to the next."""
    return re.sub(rb'"created": ?\d+|modelperm-[0-9a-f]+', b"", body)


@pytest.mark.parametrize("version", ["0.28.0", "0.31.0", "0.32.0"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_an_accepted_request_has_the_backends_answer(version: str, stream: bool) -> None:
    async with _both(version) as (direct, through):
        answers = [
            await client.post(
                GENERATE, json={**ACCEPTED, "stream": stream}, headers={"x-request-id": "one"}
            )
            for client in (direct, through)
        ]
    plain, relayed = answers
    assert plain.status_code == relayed.status_code == 200
    assert _comparable(plain.content) == _comparable(relayed.content)
    assert plain.headers["content-type"] == relayed.headers["content-type"]
    assert relayed.headers["x-request-id"] == "one"


@pytest.mark.asyncio
async def test_what_vllm_answers_with_an_empty_500_is_a_400_that_says_why() -> None:
    body = {**ACCEPTED, "sampling_params": {"temperature": 0, "top_k": -1}}
    async with _both() as (direct, through):
        plain, relayed = [await client.post(GENERATE, json=body) for client in (direct, through)]
        metrics = (await through.get("/metrics")).text
    assert (plain.status_code, plain.json()["error"]["message"]) == (500, "")
    error = relayed.json()["error"]
    assert (relayed.status_code, error["code"], error["param"]) == (400, 400, "temperature")
    assert [entry["rule"] for entry in error["errors"]] == [
        "sampling-mask-temperature",
        "sampling-mask-top-k",
    ]
    finding = 'vllm_admission_request_findings_total{rule="sampling-mask-top-k",severity="error"}'
    assert f"{finding} 1.0" in metrics


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("GET", "/health"), ("GET", "/no/such/route")]
)
@pytest.mark.asyncio
async def test_other_routes_pass(method: str, path: str) -> None:
    async with _both() as (direct, through):
        plain, relayed = [await client.request(method, path) for client in (direct, through)]
    assert plain.status_code == relayed.status_code
    assert _comparable(plain.content) == _comparable(relayed.content)


@pytest.mark.asyncio
async def test_a_broken_body_gets_the_backends_own_complaint() -> None:
    async with _both() as (direct, through):
        plain, relayed = [
            await client.post(GENERATE, content=b"{", headers={"content-type": "application/json"})
            for client in (direct, through)
        ]
    assert (plain.status_code, plain.content) == (relayed.status_code, relayed.content)
    assert plain.status_code == 400


@pytest.mark.asyncio
async def test_rules_that_need_no_configuration_work_without_one() -> None:
    async with (
        serving(simulator_of("0.32.0", demo_command("0.32.0"))) as backend,
        serving(create_app(Settings(backend_url=backend))) as gate,
        httpx.AsyncClient(base_url=gate, trust_env=False) as client,
    ):
        bad = {**ACCEPTED, "sampling_params": {"logprobs": -2}}
        answer = await client.post(GENERATE, json=bad)
    assert answer.json()["error"]["rule"] == "request-logprobs-range"


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://h", "http://", "http://u:p@h", "http://h/?q=1", "http://h:x"]
)
def test_a_backend_url_that_is_none_is_said_before_the_start(url: str) -> None:
    settings = Settings(backend_url=url)
    with pytest.raises(InvalidEnvelope, match="VLLM_ADMISSION_BACKEND_URL"):
        RequestGate(settings, CatalogueLibrary(), None, CollectorRegistry())
