"""Several backends, retries and the breaker, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from app.relay.breaker import BreakerLimits
from app.relay.fleet import Fleet, RetryLimits
from app.relay.metrics import FleetMetrics
from app.relay.upstream import Backend, base_urls
from tests.relay.faulty import FaultyBackend, Peer, Script, Seen, faulty_backend
from tests.relay.harness import Gate, RawClient, client_of, eventually, gate_of

NEVER = BreakerLimits(failures=1000)
QUICK = RetryLimits(retries=2, pause=0.001)


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@asynccontextmanager
async def fleet_gate(
    *urls: str, breaker: BreakerLimits = NEVER, retry: RetryLimits = QUICK
) -> AsyncIterator[tuple[Gate, RawClient]]:
    registry = CollectorRegistry()
    backends = [Backend(url, connect_timeout=2, idle_timeout=0.2) for url in urls]
    fleet = Fleet(backends, breaker, retry, FleetMetrics(registry))
    async with gate_of(fleet, registry=registry) as gate, client_of(gate.port) as client:
        yield gate, client


def _says(name: bytes) -> Script:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(name)

    return script


@pytest.mark.asyncio
async def test_the_least_busy_backend_is_asked() -> None:
    release = asyncio.Event()

    async def busy(_: Seen, peer: Peer) -> None:
        await release.wait()
        await peer.answer(b"busy")

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(faulty_backend(busy))
        second = await stack.enter_async_context(faulty_backend(_says(b"free")))
        gate, client = await stack.enter_async_context(fleet_gate(first.url, second.url))

        async def ask() -> bytes:
            async with client_of(gate.port) as one:
                return (await one.ask("POST", "/x", body=b"{}")).body

        waiting = []
        while not first.seen:
            waiting.append(asyncio.create_task(ask()))
            await asyncio.sleep(0.01)
        for _ in range(6):
            assert (await client.ask("POST", "/x", body=b"{}")).body == b"free"
        release.set()
        bodies = [await one for one in waiting]
    assert bodies.count(b"busy") == 1


@pytest.mark.asyncio
async def test_idle_backends_take_turns() -> None:
    async with AsyncExitStack() as stack:
        names = (b"a", b"b", b"c")
        backends = [await stack.enter_async_context(faulty_backend(_says(n))) for n in names]
        _, client = await stack.enter_async_context(fleet_gate(*(b.url for b in backends)))
        answers = [(await client.ask("GET", "/x")).body for _ in range(9)]
    assert {name: answers.count(name) for name in names} == dict.fromkeys(names, 3)


@pytest.mark.asyncio
async def test_a_request_that_reached_nobody_goes_to_another_backend() -> None:
    dead = f"http://127.0.0.1:{closed_port()}"

    async def echo(request: Seen, peer: Peer) -> None:
        await peer.answer(request.body)

    async with faulty_backend(echo) as backend, fleet_gate(dead, backend.url) as (gate, client):
        for _ in range(4):
            await client.send("POST", "/v1/x", "transfer-encoding: chunked")
            client.writer.write(b"4\r\nbody\r\n0\r\n\r\n")
            assert (await client.rest(await client.head())).body == b"body"
        assert gate.metric("backend_retries_total", backend=dead) >= 1


@pytest.mark.asyncio
async def test_a_restart_is_survived_by_trying_again() -> None:
    port = closed_port()
    backend = FaultyBackend(_says(b"up"))
    patient = RetryLimits(retries=8, pause=0.05)
    async with fleet_gate(f"http://127.0.0.1:{port}", retry=patient) as (_, client):
        await client.send("POST", "/v1/completions", body=b"{}")
        await asyncio.sleep(0.05)
        server = await asyncio.start_server(backend.connection, "127.0.0.1", port)
        try:
            assert (await client.rest(await client.head())).body == b"up"
        finally:
            server.close()
    assert len(backend.seen) == 1


@pytest.mark.parametrize("how", ["reset", "close", "stall"])
@pytest.mark.asyncio
async def test_what_was_sent_is_never_sent_again(how: str) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        if how == "stall":
            await peer.until_closed()
        else:
            getattr(peer, how)()

    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(faulty_backend(script)) for _ in range(2)]
        _, client = await stack.enter_async_context(fleet_gate(*(b.url for b in backends)))
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
    assert answer.status == (504 if how == "stall" else 502)
    assert sum(len(backend.seen) for backend in backends) == 1


@pytest.mark.asyncio
async def test_the_breaker_opens_spares_the_backend_and_closes_after_two_answers() -> None:
    broken = True

    async def script(_: Seen, peer: Peer) -> None:
        if broken:
            peer.close()
        else:
            await peer.answer(b"well", status="500 Internal Server Error")

    limits = BreakerLimits(failures=3, open_seconds=0.1, successes=2)
    async with (
        faulty_backend(script) as backend,
        fleet_gate(backend.url, breaker=limits) as (gate, client),
    ):
        statuses = [(await client.ask("POST", "/x", body=b"{}")).status for _ in range(3)]
        refused = await client.ask("POST", "/x", body=b"{}")
        assert gate.metric("backend_healthy", backend=backend.url) == 0
        assert gate.metric("backend_breaker_openings_total", backend=backend.url) == 1
        seen = len(backend.seen)
        broken = False
        await asyncio.sleep(0.12)
        answers = [await client.ask("POST", "/x", body=b"{}") for _ in range(3)]
        assert gate.metric("backend_healthy", backend=backend.url) == 1
    assert statuses == [502, 502, 502]
    assert (refused.status, refused.first("retry-after"), seen) == (503, "1", 3)
    assert b'"vllm_admission": "circuit-open"' in refused.body
    assert [answer.status for answer in answers] == [500, 500, 500]


@pytest.mark.asyncio
async def test_an_open_breaker_leaves_the_others_in_use_and_is_tried_again() -> None:
    broken = True

    async def script(_: Seen, peer: Peer) -> None:
        if broken:
            peer.reset()
        else:
            await peer.answer(b"back")

    limits = BreakerLimits(failures=1, open_seconds=0.1, successes=1)
    async with AsyncExitStack() as stack:
        bad = await stack.enter_async_context(faulty_backend(script))
        good = await stack.enter_async_context(faulty_backend(_says(b"good")))
        _, client = await stack.enter_async_context(fleet_gate(bad.url, good.url, breaker=limits))
        statuses = [(await client.ask("GET", "/x")).status for _ in range(10)]
        broken = False
        await asyncio.sleep(0.12)
        bodies = {(await client.ask("GET", "/x")).body for _ in range(6)}
    assert sorted(statuses)[-2:] == [200, 502]
    assert bodies == {b"back", b"good"}


@pytest.mark.asyncio
async def test_a_client_that_breaks_off_its_body_is_no_failure_of_the_backend() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(b"ok")

    limits = BreakerLimits(failures=1, open_seconds=60)
    async with (
        faulty_backend(script) as backend,
        fleet_gate(backend.url, breaker=limits) as (gate, client),
    ):
        for _ in range(3):
            async with client_of(gate.port) as leaving:
                await leaving.send("POST", "/v1/x", "content-length: 1000")
                leaving.writer.write(b"half")
                await eventually(lambda: gate.metric("proxy_in_flight") == 1)
                leaving.leave()
                await eventually(lambda: gate.metric("proxy_in_flight") == 0)
        assert (await client.ask("GET", "/x")).body == b"ok"


@pytest.mark.asyncio
async def test_in_flight_is_counted_down_however_it_ends() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        if "cut" in request.line:
            peer.reset()
        elif "stall" in request.line:
            await peer.until_closed()
        else:
            await peer.answer(b"ok")

    async with faulty_backend(script) as faulty:
        backend = Backend(faulty.url, connect_timeout=2, idle_timeout=0.1)
        async with gate_of(backend) as gate, client_of(gate.port) as client:
            for target in ("/x", "/cut", "/stall", "/x"):
                await client.ask("GET", target)
            async with client_of(gate.port) as leaving:
                await leaving.send("GET", "/stall")
                await eventually(lambda: backend.in_flight == 1)
                leaving.leave()
            await eventually(lambda: backend.in_flight == 0)


def test_a_list_of_urls_is_read_and_checked() -> None:
    assert [str(u) for u in base_urls("http://a:1, http://b:2/p")] == ["http://a:1", "http://b:2/p"]
    with pytest.raises(ValueError, match="twice"):
        base_urls("http://a:1,http://a:1")
    with pytest.raises(ValueError, match="name a host"):
        base_urls("http://a:1,,")
