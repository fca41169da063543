"""The relay in front of real vLLM: drift against what it says, and its denial of WebSockets."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.relay.breaker import Breaker, BreakerLimits
from app.relay.drift.monitor import Declared, DriftMonitor
from app.relay.fleet import Member
from app.relay.metrics import DriftMetrics
from app.relay.upstream import Backend
from app.serve_config.resolve import resolve
from lab.server import MODEL_NAME, Server
from tests.relay.harness import gate_to


async def _differing(server: Server, *more: str) -> list[str]:
    """The remarks about a server that was declared with more options than it has."""
    catalogue = CatalogueLibrary().get(server.version)
    command = " ".join(("vllm serve", *server.command, *more))
    declared = Declared(server.version, resolve(parse_command(command), catalogue).config)
    assert declared.config is not None
    backend = Backend(server.url, connect_timeout=5, idle_timeout=60)
    member = Member(backend, Breaker(BreakerLimits()))
    monitor = DriftMonitor([member], declared, 60, DriftMetrics(CollectorRegistry()))
    try:
        await monitor.compare(member)
    finally:
        await backend.aclose()
    return [remark.removeprefix(f"{member.name}: ") for remark in monitor.remarks]


@pytest.mark.asyncio
async def test_a_server_does_not_differ_from_its_own_command(default_vllm: Server) -> None:
    assert await _differing(default_vllm) == []


@pytest.mark.asyncio
async def test_a_server_differs_from_another_command(default_vllm: Server) -> None:
    more = ("--served-model-name other", "--max-model-len 512", "--gpu-memory-utilization 0.5")
    assert await _differing(default_vllm, *more) == [
        f"served_model_name is {MODEL_NAME}, declared is other",
        "max_model_len is 256, declared is 512",
        "gpu_memory_utilization is 0.92, declared is 0.5",
    ]


@pytest.mark.parametrize("path", ["/v1/realtime", "/nowhere"])
@pytest.mark.asyncio
async def test_a_websocket_is_denied_as_vllm_denies_it(default_vllm: Server, path: str) -> None:
    answers = []
    async with gate_to(default_vllm.url) as gate:
        for url in (default_vllm.url, f"http://127.0.0.1:{gate.port}"):
            with pytest.raises(InvalidStatus) as denied:
                await connect(url.replace("http://", "ws://") + path, proxy=None)
            response = denied.value.response
            answers.append((response.status_code, bytes(response.body or b"")))
    direct, through = answers
    assert direct == through == (403, b"")
