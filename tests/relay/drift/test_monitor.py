"""The monitor against backends on sockets, and what readiness and metrics then say."""

from __future__ import annotations

import json

import httpx
import pytest
from prometheus_client import CollectorRegistry

from app.main import create_app
from app.relay.breaker import Breaker, BreakerLimits
from app.relay.drift.monitor import Declared, DriftMonitor
from app.relay.fleet import Member
from app.relay.metrics import DriftMetrics
from app.relay.upstream import Backend
from app.serving import demo_command, simulator_of
from app.settings import Settings
from tests.relay.drift.test_compare import CARDS, EXPOSITION, VERSION, declared
from tests.relay.faulty import Peer, Script, Seen, faulty_backend
from tests.relay.harness import eventually
from tests.relay.test_fleet import closed_port
from tests.support import serving

COMMAND = "vllm serve m --api-key secret --max-model-len 8192"


def _vllm(pages: dict[str, bytes]) -> Script:
    async def script(request: Seen, peer: Peer) -> None:
        page = pages.get(request.line.split()[1])
        if page is None:
            await peer.answer(b'{"detail":"Not Found"}', status="404 Not Found")
        else:
            await peer.answer(page)

    return script


@pytest.mark.asyncio
async def test_a_backend_is_compared_and_its_change_noticed() -> None:
    pages = {
        "/version": json.dumps({"version": VERSION}).encode(),
        "/v1/models": json.dumps(CARDS).encode(),
        "/metrics": EXPOSITION.encode(),
    }
    registry = CollectorRegistry()
    async with faulty_backend(_vllm(pages)) as faulty:
        backend = Backend(faulty.url, connect_timeout=2, idle_timeout=5)
        member = Member(backend, Breaker(BreakerLimits()))
        monitor = DriftMonitor(
            [member], Declared(VERSION, declared(COMMAND)), 60, DriftMetrics(registry)
        )
        assert monitor.remarks == [f"{faulty.url} has not answered yet, so it was not compared"]
        await monitor.compare(member)
        first, keys = monitor.remarks, [seen.all("authorization") for seen in faulty.seen]
        gauge = {"backend": faulty.url, "field": "max_model_len"}
        drifted = registry.get_sample_value("vllm_admission_drift", gauge)
        pages["/v1/models"] = pages["/v1/models"].replace(b"4096", b"8192")
        pages["/version"] = b'{"version": "0.31.0"}'
        await monitor.compare(member)
        second = monitor.remarks
        await backend.aclose()
    assert first == [f"{faulty.url}: max_model_len is 4096, declared is 8192"]
    assert second == [f"{faulty.url}: vllm_version is 0.31.0, declared is {VERSION}"]
    assert keys == [["Bearer secret"]] * 4
    assert drifted == 1
    assert registry.get_sample_value("vllm_admission_drift", gauge) == 0


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"version": 3, "data": {}}', b"\xff" * 99])
@pytest.mark.asyncio
async def test_what_is_no_answer_differs_in_nothing(garbage: bytes) -> None:
    targets = ("/version", "/v1/models", "/metrics", "/server_info?config_format=json")
    pages = dict.fromkeys(targets, garbage)
    async with faulty_backend(_vllm(pages)) as faulty:
        backend = Backend(faulty.url, connect_timeout=2, idle_timeout=5)
        member = Member(backend, Breaker(BreakerLimits()))
        monitor = DriftMonitor(
            [member], Declared(VERSION, declared(COMMAND)), 60, DriftMetrics(CollectorRegistry())
        )
        await monitor.compare(member)
        await backend.aclose()
    assert monitor.remarks == []


@pytest.mark.asyncio
async def test_a_backend_that_is_away_is_not_said_to_differ() -> None:
    backend = Backend(f"http://127.0.0.1:{closed_port()}", connect_timeout=2, idle_timeout=5)
    member = Member(backend, Breaker(BreakerLimits()))
    registry = CollectorRegistry()
    monitor = DriftMonitor([member], Declared(VERSION, None), 60, DriftMetrics(registry))
    await monitor.compare(member)
    await backend.aclose()
    assert not monitor.drifted
    away = {"backend": member.name, "outcome": "unreachable"}
    name = "vllm_admission_drift_comparisons_total"
    assert registry.get_sample_value(name, away) == 1


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.asyncio
async def test_readiness_tells_of_drift_and_fails_only_where_that_is_wanted(strict: bool) -> None:
    admitted = demo_command(VERSION)
    actual = admitted.replace("--max-model-len 2048", "--max-model-len 1024")
    async with serving(simulator_of(VERSION, actual)) as backend:
        settings = Settings(
            backend_url=backend,
            serve_config=admitted,
            vllm_version=VERSION,
            drift_is_unready=strict,
        )
        app = create_app(settings)
        async with serving(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await eventually(
                lambda: app.state.gates.registry.get_sample_value(
                    "vllm_admission_drift", {"backend": backend, "field": "max_model_len"}
                )
            )
            ready = await client.get("/readyz?verbose")
    assert f"[!]{backend}: max_model_len is 1024, declared is 2048" in ready.text
    assert ready.status_code == (503 if strict else 200)
    assert ("[-]no-drift" in ready.text) is strict
