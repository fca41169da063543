"""The gate beside vLLM in a pod: what the kubelet does to the one must not cost the other."""

from __future__ import annotations

import asyncio

import httpx
import pytest

import app.api.proxy
from app.api.state import Gates
from app.main import create_app
from app.relay.relay import Relay
from app.settings import Settings
from tests.relay.faulty import Peer, Seen, faulty_backend, stream_that_waits
from tests.relay.harness import Answer, client_of
from tests.support import serving


async def _answer(request: Seen, peer: Peer) -> None:
    await peer.answer(b"served")


async def _asked(url: str, target: str) -> Answer:
    async with client_of(int(url.rsplit(":", 1)[1])) as client:
        return await client.ask("GET", target)


async def _until(url: str, target: str, status: int) -> None:
    async with asyncio.timeout(5):
        while True:
            if (await _asked(url, target)).status == status:
                return
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_the_hook_returns_when_the_last_stream_has_ended() -> None:
    go_on = asyncio.Event()
    async with faulty_backend(stream_that_waits(go_on)) as backend:
        service = create_app(Settings(backend_url=backend.url, drift_interval=0))
        async with serving(service) as url, client_of(int(url.rsplit(":", 1)[1])) as client:
            await client.send("POST", "/v1/completions", body=b"{}")
            head = await client.head()
            assert await client.part() == b"data: 1\n\n"
            hook = asyncio.create_task(_asked(url, "/drain"))
            await _until(url, "/v1/models", 503)
            assert (await _asked(url, "/livez")).status == 200
            assert not hook.done()
            go_on.set()
            assert (await client.rest(head)).body == b"data: [DONE]\n\n"
            assert (await hook).body == b"drained\n"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("::ffff:10.0.0.7", False),
        ("fd00::7", False),
        ("testclient", False),
    ],
)
@pytest.mark.asyncio
async def test_only_the_same_pod_may_ask_for_the_drain(host: str, allowed: bool) -> None:
    service = create_app(Settings())
    transport = httpx.ASGITransport(app=service, client=(host, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://gate") as client:
        answer = await client.get("/drain")
    assert answer.status_code == (200 if allowed else 403)


@pytest.mark.asyncio
async def test_a_neighbour_that_is_only_restarted_is_served_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kubelet runs `preStop` also where it restarts vLLM alone, whose liveness probe failed."""
    monkeypatch.setattr(app.api.proxy, "RESUME_SECONDS", 0.01)
    async with faulty_backend(_answer) as backend:
        service = create_app(Settings(backend_url=backend.url, drift_interval=0))
        async with serving(service) as url:
            assert (await _asked(url, "/v1/models")).status == 200
            for _ in range(2):
                assert (await _asked(url, "/drain")).body == b"drained\n"
                await _until(url, "/readyz", 200)
                assert (await _asked(url, "/v1/models")).body == b"served"


@pytest.mark.asyncio
async def test_two_ports_that_end_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    service = create_app(Settings())
    gates: Gates = service.state.gates
    drained: list[float] = []

    async def drain(relay: Relay, seconds: float) -> None:
        drained.append(seconds)

    monkeypatch.setattr(Relay, "drain", drain)
    async with service.router.lifespan_context(service):
        await asyncio.gather(gates.request_gate.drain(), gates.request_gate.drain())
        await gates.request_gate.drain()
    assert len(drained) == 1


@pytest.mark.asyncio
async def test_where_the_pod_ends_nothing_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.api.proxy, "RESUME_SECONDS", 0.02)
    async with faulty_backend(_answer) as backend:
        service = create_app(Settings(backend_url=backend.url, drift_interval=0))
        gates: Gates = service.state.gates
        async with serving(service) as url:
            assert (await _asked(url, "/drain")).status == 200
            await gates.request_gate.drain()
            await asyncio.sleep(0.05)
            assert (await _asked(url, "/readyz")).status == 503
            assert (await _asked(url, "/v1/models")).status == 503
