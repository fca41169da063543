"""The access log: what it says, and what it must not say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog

from app.main import create_app
from app.serving import demo_command, simulator_of
from app.settings import Settings
from app.telemetry.access import AccessLog
from tests.support import serving

VERSION = "0.32.0"
CHAT = {
    "model": "toy",
    "messages": [{"role": "user", "content": "my secret prompt"}],
    "max_tokens": 4,
    "temperature": 1.0,
    "top_k": 5,
    "seed": 1,
    "logprobs": True,
    "top_logprobs": 5,
}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

Events = Sequence[MutableMapping[str, Any]]


@asynccontextmanager
async def _client(access_log: AccessLog = AccessLog.ALL) -> AsyncIterator[httpx.AsyncClient]:
    command = demo_command(VERSION)
    async with serving(simulator_of(VERSION, command)) as backend:
        settings = Settings(
            backend_url=backend, serve_config=command, vllm_version=VERSION, access_log=access_log
        )
        async with (
            serving(create_app(settings)) as gate,
            httpx.AsyncClient(base_url=gate, trust_env=False) as client,
        ):
            yield client


def _requests(events: Events) -> list[MutableMapping[str, Any]]:
    return [event for event in events if event["event"] == "request"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_a_relayed_request_is_logged_with_where_its_time_went(stream: bool) -> None:
    with structlog.testing.capture_logs() as events:
        async with _client() as client:
            answer = await client.post(
                "/v1/chat/completions",
                json={**CHAT, "stream": stream},
                headers={"x-request-id": "r-1", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
            )
    assert answer.status_code == 200, answer.text
    (event,) = _requests(events)
    assert event["log_level"] == "info"
    assert (event["request_id"], event["trace_id"]) == ("r-1", TRACE)
    assert (event["method"], event["path"]) == ("POST", "/v1/chat/completions")
    assert (event["route"], event["status"], event["outcome"]) == (
        "/v1/chat/completions",
        200,
        "2xx",
    )
    parts = [event["own_s"], event["upstream_s"], event.get("client_s", 0.0)]
    assert 0 < sum(parts) <= event["duration_s"] + 1e-5
    assert 0 < event["first_byte_s"] <= event["duration_s"]
    assert "secret" not in json.dumps(event)


@pytest.mark.asyncio
async def test_a_request_without_a_trace_begins_one() -> None:
    with structlog.testing.capture_logs() as events:
        async with _client() as client:
            await client.get("/v1/models")
            await client.get("/v1/models", headers={"traceparent": "00-nonsense"})
    first, second = (event["trace_id"] for event in _requests(events))
    assert len(first) == len(second) == 32
    assert first != second


@pytest.mark.asyncio
async def test_our_own_routes_are_logged_by_their_pattern_and_probes_only_for_debugging() -> None:
    with structlog.testing.capture_logs() as events:
        async with _client() as client:
            await client.get("/rules/sampling-mask-runner?secret=1")
            await client.get("/livez")
            await client.get("/rules/no/such/page")
    rule, probe, missing = _requests(events)
    assert (rule["route"], rule["status"], rule["log_level"]) == ("/rules/{rule_id}", 200, "info")
    assert "secret" not in json.dumps(rule)
    assert (probe["route"], probe["log_level"]) == ("/livez", "debug")
    assert missing["status"] == 404


@pytest.mark.asyncio
async def test_a_refusal_is_logged_as_one() -> None:
    with structlog.testing.capture_logs() as events:
        async with _client(AccessLog.ERRORS) as client:
            await client.get("/v1/models")
            await client.post("/v1/chat/completions", json={**CHAT, "temperature": 0})
    (event,) = _requests(events)
    assert (event["status"], event["outcome"]) == (400, "refused")


@pytest.mark.asyncio
async def test_the_log_can_be_turned_off() -> None:
    with structlog.testing.capture_logs() as events:
        async with _client(AccessLog.OFF) as client:
            await client.post("/v1/chat/completions", json={**CHAT, "temperature": 0})
    assert _requests(events) == []


@pytest.mark.asyncio
async def test_a_failing_backend_is_a_warning() -> None:
    with structlog.testing.capture_logs() as events:
        settings = Settings(backend_url="http://127.0.0.1:9", connect_timeout=0.2)
        async with (
            serving(create_app(settings)) as gate,
            httpx.AsyncClient(base_url=gate, trust_env=False) as client,
        ):
            answer = await client.get("/v1/models")
    assert answer.status_code == 502
    (event,) = _requests(events)
    assert (event["log_level"], event["outcome"]) == ("warning", "backend-unreachable")
