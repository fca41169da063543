"""WebSockets through the relay, on real sockets: a client library, and a backend that obeys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from app.relay.capacity import CapacityLimits
from app.relay.faults import Draining
from app.relay.websocket import SocketLimits
from tests.relay.faulty import Peer, Seen, faulty_backend
from tests.relay.harness import Gate, client_of, eventually, gate_to

Handler = Callable[[ServerConnection], Awaitable[None]]
PATH = "/v1/realtime?model=a%2Fb"


async def _echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


@asynccontextmanager
async def _backend(handler: Handler, **options: Any) -> AsyncIterator[str]:
    quiet = logging.getLogger("tests.quiet")
    quiet.setLevel(logging.CRITICAL)
    async with serve(handler, "127.0.0.1", 0, logger=quiet, **options) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


@asynccontextmanager
async def _through(
    handler: Handler, *, sockets: SocketLimits | None = None, **options: Any
) -> AsyncIterator[tuple[Gate, Callable[..., connect]]]:
    """A gate in front of `handler`, and how to connect to it."""
    async with _backend(handler, **options) as url, gate_to(url, sockets=sockets) as gate:
        yield (
            gate,
            lambda path=PATH, **o: connect(f"ws://127.0.0.1:{gate.port}{path}", proxy=None, **o),
        )


async def _close_of(client: ClientConnection) -> tuple[int | None, str | None]:
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(client.recv(), 5)
    return client.close_code, client.close_reason


@pytest.mark.asyncio
async def test_text_and_bytes_pass_both_ways() -> None:
    messages: list[str | bytes] = ["hëllo", b"\x00\xff", "", b"", "x" * 200_000]
    async with _through(_echo) as (gate, dial), dial() as client:
        assert gate.metric("proxy_websockets") == 1
        for message in messages:
            await client.send(message)
            assert await client.recv() == message
        await client.close()
        await eventually(lambda: gate.metric("proxy_websockets") == 0)
        left = {"route": "websocket", "outcome": "client-left"}
        await eventually(lambda: gate.metric("proxy_requests_total", **left) == 1)


@pytest.mark.asyncio
async def test_path_fields_and_subprotocol_are_the_backends_to_see() -> None:
    seen: list[Request] = []

    async def handler(socket: ServerConnection) -> None:
        assert socket.request is not None
        seen.append(socket.request)
        await _echo(socket)

    def answer(_: ServerConnection, __: Request, response: Response) -> Response:
        response.headers["x-from-backend"] = "1"
        return response

    options: dict[str, Any] = {
        "subprotocols": [Subprotocol("b"), Subprotocol("a")],
        "process_response": answer,
    }
    async with (
        _through(handler, **options) as (_, dial),
        dial(
            subprotocols=[Subprotocol("a"), Subprotocol("b")],
            additional_headers={"authorization": "Bearer k", "x-request-id": "r-1"},
            origin="https://page.example",
        ) as client,
    ):
        assert client.subprotocol == "b"  # the backend prefers it
        assert client.response is not None
        assert client.response.headers["x-from-backend"] == "1"
        assert client.response.headers["x-request-id"] == "r-1"
    request = seen[0]
    assert request.path == PATH
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["origin"] == "https://page.example"
    assert request.headers["x-request-id"] == "r-1"
    assert request.headers["via"] == "1.1 vllm-admission"
    assert len(request.headers.get_all("sec-websocket-key")) == 1


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (3007, "done, thanks"), (1011, "ouch")])
@pytest.mark.asyncio
async def test_the_backends_close_code_reaches_the_client(code: int, reason: str) -> None:
    async def handler(socket: ServerConnection) -> None:
        await socket.close(code, reason)

    async with _through(handler) as (gate, dial), dial() as client:
        assert await _close_of(client) == (code, reason)
        closed = {"route": "websocket", "outcome": "closed"}
        await eventually(lambda: gate.metric("proxy_requests_total", **closed) == 1)


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4001, "enough")])
@pytest.mark.asyncio
async def test_the_clients_close_code_reaches_the_backend(code: int, reason: str) -> None:
    ends: list[tuple[int | None, str | None]] = []

    async def handler(socket: ServerConnection) -> None:
        await socket.wait_closed()
        ends.append((socket.close_code, socket.close_reason))

    async with _through(handler) as (_, dial):
        async with dial() as client:
            await client.close(code, reason)
        await eventually(lambda: ends)
    assert ends == [(code, reason)]


@pytest.mark.asyncio
async def test_a_client_that_vanishes_closes_the_backends_side() -> None:
    ended = asyncio.Event()

    async def handler(socket: ServerConnection) -> None:
        await socket.wait_closed()
        ended.set()

    async with _through(handler) as (gate, dial), dial() as client:
        client.transport.abort()
        await asyncio.wait_for(ended.wait(), 5)
        await eventually(lambda: gate.metric("proxy_websockets") == 0)


@pytest.mark.asyncio
async def test_a_backend_that_vanishes_is_a_bad_gateway_to_the_client() -> None:
    async def handler(socket: ServerConnection) -> None:
        socket.transport.abort()

    async with _through(handler) as (_, dial), dial() as client:
        assert (await _close_of(client))[0] == 1014


@pytest.mark.asyncio
async def test_too_long_a_message_of_the_backend_ends_both() -> None:
    async def handler(socket: ServerConnection) -> None:
        await socket.send("x" * 2000)
        await socket.wait_closed()

    limits = SocketLimits(max_message_bytes=1000)
    async with _through(handler, sockets=limits) as (_, dial), dial() as client:
        assert (await _close_of(client))[0] == 1009


@pytest.mark.asyncio
async def test_too_long_a_message_of_the_client_ends_both() -> None:
    ends: list[int | None] = []

    async def handler(socket: ServerConnection) -> None:
        await socket.wait_closed()
        ends.append(socket.close_code)

    async with _through(handler) as (_, dial), dial() as client:
        await client.send("x" * (2**20 + 1))  # the harness's server takes 1 MiB
        assert (await _close_of(client))[0] == 1009
        await eventually(lambda: ends)
    assert ends == [1009]


@pytest.mark.asyncio
async def test_a_client_that_reads_nothing_slows_the_backend_and_is_then_let_go() -> None:
    sent = 0
    ended = asyncio.Event()

    async def handler(socket: ServerConnection) -> None:
        nonlocal sent
        try:
            while True:
                await socket.send(b"x" * 65536)
                sent += 1
        except ConnectionClosed:
            ended.set()

    limits = SocketLimits(write_timeout=0.2)
    async with _through(handler, sockets=limits) as (gate, _), client_of(gate.port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a read transport
        await client.send(
            "GET",
            "/v1/realtime",
            "connection: Upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        )
        await asyncio.wait_for(ended.wait(), 5)
        assert sent < 1000
        slow = {"route": "websocket", "outcome": "client-too-slow"}
        await eventually(lambda: gate.metric("proxy_requests_total", **slow) == 1)


@pytest.mark.asyncio
async def test_a_backend_without_websockets_denies_in_its_own_words() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await peer.answer(b'{"error":"Unauthorized"}', "x-own: 1", status="401 Unauthorized")

    async with faulty_backend(script) as backend, gate_to(backend.url) as gate:
        with pytest.raises(InvalidStatus) as denied:
            await connect(f"ws://127.0.0.1:{gate.port}/v1/realtime", proxy=None)
        refused = {"route": "websocket", "outcome": "4xx"}
        assert gate.metric("proxy_requests_total", **refused) == 1
    response = denied.value.response
    assert (response.status_code, response.body) == (401, b'{"error":"Unauthorized"}')
    assert response.headers["x-own"] == "1"
    assert backend.seen[0].all("upgrade") == ["websocket"]


@pytest.mark.asyncio
async def test_no_backend_is_a_502_before_the_handshake() -> None:
    async with gate_to("http://127.0.0.1:9") as gate:
        with pytest.raises(InvalidStatus) as denied:
            await connect(f"ws://127.0.0.1:{gate.port}/x", proxy=None)
    assert denied.value.response.status_code == 502
    assert b"cannot be reached" in (denied.value.response.body or b"")


@pytest.mark.asyncio
async def test_a_client_that_leaves_in_the_handshake_ends_the_backends() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await backend.hang(peer)

    async with faulty_backend(script) as backend, gate_to(backend.url) as gate:
        dialling = asyncio.ensure_future(_dial(gate.port))
        await eventually(lambda: backend.seen)
        dialling.cancel()
        await asyncio.wait_for(backend.aborted.wait(), 5)
        left = {"route": "websocket", "outcome": "client-left"}
        await eventually(lambda: gate.metric("proxy_requests_total", **left) == 1)


async def _dial(port: int) -> None:
    await connect(f"ws://127.0.0.1:{port}/x", proxy=None)


@pytest.mark.asyncio
async def test_sockets_count_as_in_flight_and_are_refused_above_the_limit() -> None:
    async with (
        _backend(_echo) as url,
        gate_to(url, capacity=CapacityLimits(in_flight=1)) as gate,
        connect(f"ws://127.0.0.1:{gate.port}/x", proxy=None),
    ):
        with pytest.raises(InvalidStatus) as denied:
            await connect(f"ws://127.0.0.1:{gate.port}/x", proxy=None)
    assert denied.value.response.status_code == 503
    assert denied.value.response.headers["retry-after"] == "5"


@pytest.mark.asyncio
async def test_a_drain_closes_sockets_as_a_restart() -> None:
    async with _through(_echo) as (gate, dial), dial() as client:
        await client.send("a")
        assert await client.recv() == "a"
        await gate.relay.drain(0.05)
        assert (await _close_of(client))[0] == 1012
        with pytest.raises(InvalidStatus) as denied:
            await dial()
        assert denied.value.response.status_code == Draining.status
