"""Field values that are no UTF-8 reach the backend as they came, over httpx's own connections."""

from __future__ import annotations

import asyncio

import pytest

from app.relay.upstream import Backend
from tests.relay.faulty import Peer, Seen, faulty_backend, stream_that_waits
from tests.relay.harness import Gate, client_of, eventually, gate_to, scene
from tests.relay.test_fleet import closed_port

OCTETS = bytes(range(0x80, 0x100)).decode("latin-1")
LATIN = f"x-name: J\xf6rg {OCTETS}"


def _in_flight(gate: Gate) -> int:
    assert isinstance(gate.relay.backend, Backend)
    return gate.relay.backend.in_flight


async def _echo(request: Seen, peer: Peer) -> None:
    await peer.answer(request.body, "x-back: \xf6", "set-cookie: a=1", "set-cookie: b=2")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "value", [LATIN, "x-name: \xc3\xb6", "x-name: \xc3", "x-name: \xed\xa0\x80"]
)
@pytest.mark.parametrize("target", ["/x?q=%2F%ff&a=b c".replace(" ", "+"), "/v1/completions"])
async def test_every_octet_arrives(value: str, target: str) -> None:
    body = b'{"prompt": "p", "n": 1}'
    async with scene(_echo) as (backend, _, client):
        asked = await client.ask("GET", target, value)
        answers = [await client.ask("POST", target, value, body=body)]
        await client.send("POST", target, value, "transfer-encoding: chunked")
        client.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        answers.append(await client.rest(await client.head()))
    assert (asked.status, asked.body) == (200, b"")
    for answer in answers:
        assert (answer.status, answer.body, answer.first("x-back")) == (200, body, "\xf6")
        assert answer.all("set-cookie") == ["a=1", "b=2"]
    name, _, wanted = value.partition(": ")
    for method, seen in zip(("GET", "POST", "POST"), backend.seen, strict=True):
        assert seen.line == f"{method} {target} HTTP/1.1"
        assert seen.all(name) == [wanted]
        assert seen.all("host") == [backend.url.removeprefix("http://")]
        for added in ("accept", "accept-encoding", "user-agent", "connection"):
            assert seen.all(added) == []


@pytest.mark.asyncio
async def test_a_redirect_to_the_backend_leads_to_the_gate() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        location = f"location: {backend.url}/elsewhere"
        await peer.answer(b"", location, status="307 Temporary Redirect")

    async with scene(script) as (backend, _, client):
        plain = await client.ask("GET", "/x")
        latin = await client.ask("GET", "/x", LATIN)
    assert latin.status == plain.status == 307
    assert latin.first("location") == plain.first("location") != f"{backend.url}/elsewhere"


@pytest.mark.asyncio
async def test_a_large_body_arrives_whole() -> None:
    body = b"x" * (3 * 2**20)
    async with faulty_backend(_echo) as backend, gate_to(backend.url) as gate:
        gate.relay.limits = type(gate.relay.limits)(2**23)
        async with client_of(gate.port) as client:
            answer = await client.ask("POST", "/x", LATIN, body=body)
    assert answer.body == body


@pytest.mark.asyncio
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_client_that_leaves_ends_the_backends_request(streaming: bool) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        if streaming:
            await peer.start_stream()
            await peer.chunk(b"data: 1\n\n")
        await backend.hang(peer)

    async with scene(script) as (backend, gate, client):
        await client.send("POST", "/v1/completions", LATIN, body=b"{}")
        if streaming:
            await client.head()
            assert await client.part() == b"data: 1\n\n"
        else:
            await eventually(lambda: backend.seen)
        client.leave()
        async with asyncio.timeout(5):
            await backend.aborted.wait()
        await eventually(lambda: _in_flight(gate) == 0)


@pytest.mark.asyncio
async def test_many_at_a_time_leave_nothing_open() -> None:
    go_on = asyncio.Event()

    async def ask(port: int) -> bytes:
        async with client_of(port) as client:
            return (await client.ask("POST", "/v1/completions", LATIN, body=b"{}")).body

    async with (
        faulty_backend(stream_that_waits(go_on)) as backend,
        gate_to(backend.url) as gate,
        asyncio.TaskGroup() as group,
    ):
        asked = [group.create_task(ask(gate.port)) for _ in range(64)]
        await eventually(lambda: backend.open == len(backend.seen) == 64)
        go_on.set()
        await asyncio.gather(*asked)
        await eventually(lambda: backend.open == 0)
        assert _in_flight(gate) == 0
    assert {task.result() for task in asked} == {b"data: 1\n\ndata: [DONE]\n\n"}


@pytest.mark.asyncio
async def test_faults_are_told_as_ever() -> None:
    async def silent(_: Seen, peer: Peer) -> None:
        await peer.until_closed()

    port = closed_port()
    async with gate_to(f"http://127.0.0.1:{port}") as gate, client_of(gate.port) as client:
        refused = await client.ask("GET", "/x", LATIN)
        assert _in_flight(gate) == 0
    async with scene(silent, idle_timeout=0.1) as (_, gate, client):
        late = await client.ask("GET", "/x", LATIN)
        assert _in_flight(gate) == 0
    assert (refused.status, late.status) == (502, 504)
    assert str(port).encode() not in refused.body


@pytest.mark.asyncio
async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        await peer.chunk(b"data: 1\n\n")
        peer.reset()

    async with scene(script) as (_, _, client):
        answer = await client.ask("POST", "/v1/completions", LATIN, body=b"{}")
    first, error, done = answer.body.strip().split(b"\n\n")
    assert (first, done, answer.complete) == (b"data: 1", b"data: [DONE]", True)
    assert error.startswith(b'data: {"error"')
