"""What goes wrong gets an honest end: a status, an error event, or a cut connection."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from prometheus_client import CollectorRegistry

from app.relay.client import BodyLimits
from app.relay.metrics import RelayMetrics
from app.relay.relay import Relay
from app.request_rules.examination import Examination
from tests.relay.faulty import EVENT_STREAM, FaultyBackend, Peer, Script, Seen, faulty_backend
from tests.relay.harness import (
    Answer,
    NoRules,
    client_of,
    eventually,
    gate_to,
    listening,
    scene,
)


def _error(answer: Answer) -> dict[str, object]:
    error: dict[str, object] = json.loads(answer.body)["error"]
    assert error["code"] == answer.status
    assert {"message", "type", "param", "code"} <= error.keys()
    return error


async def _fault(script: Script, *, idle_timeout: float = 5.0) -> Answer:
    async with scene(script, idle_timeout=idle_timeout) as (_, gate, client):
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
        assert gate.metric("proxy_in_flight") == 0
    return answer


def _closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
@pytest.mark.asyncio
async def test_an_unreachable_backend_is_a_502(host: str) -> None:
    async with gate_to(f"http://{host}:{_closed_port()}") as gate, client_of(gate.port) as client:
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
        outcome = {"route": "other", "outcome": "backend-unreachable"}
        assert gate.metric("proxy_requests_total", **outcome) == 1
    assert answer.status == 502
    assert "cannot be reached" in str(_error(answer)["message"])
    assert host not in str(_error(answer)["message"])  # the client need not know where it is


@pytest.mark.asyncio
async def test_a_backend_that_never_accepts_is_a_504() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with gate_to(url, connect_timeout=0.2) as gate, client_of(gate.port) as client:
            answer = await client.ask("GET", "/health")
        for filler in fillers:
            filler.close()
    assert answer.status == 504
    assert "did not accept a connection" in str(_error(answer)["message"])


@pytest.mark.asyncio
async def test_a_backend_that_stays_silent_is_a_504() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.until_closed()

    answer = await _fault(script, idle_timeout=0.2)
    assert answer.status == 504
    assert "sent nothing for too long" in str(_error(answer)["message"])


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.asyncio
async def test_a_connection_lost_before_the_header_is_a_502(how: str) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        getattr(peer, how)()

    answer = await _fault(script)
    assert answer.status == 502
    assert "closed the connection" in str(_error(answer)["message"])


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.7\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: minus\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 000 Odd\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
    ids=["not-http", "bad-field", "oversized-field", "bad-length", "999", "000", "101"],
)
@pytest.mark.asyncio
async def test_what_is_not_http_is_a_502(garbage: bytes) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.send(garbage)
        peer.close()

    answer = await _fault(script)
    assert answer.status == 502
    assert "no valid HTTP answer" in str(_error(answer)["message"])
    assert "127.0.0.1" not in str(_error(answer)["message"])


async def _half_a_stream(peer: Peer) -> None:
    await peer.start_stream()
    await peer.chunk(b'data: {"n": 1}\n\n')


async def _reset_later(peer: Peer) -> None:
    await asyncio.sleep(0.05)
    peer.reset()


@pytest.mark.asyncio
async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await _half_a_stream(peer)
        await _reset_later(peer)

    async with scene(script) as (_, gate, client):
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
        cut = {"route": "other", "outcome": "cut"}
        await eventually(lambda: gate.metric("proxy_requests_total", **cut) == 1)
    assert answer.complete
    first, error, done, end = answer.body.split(b"\n\n")
    assert (first, done, end) == (b'data: {"n": 1}', b"data: [DONE]", b"")
    body = json.loads(error.removeprefix(b"data: "))["error"]
    assert (body["code"], body["type"]) == (502, "BadGatewayError")


@pytest.mark.asyncio
async def test_a_stalled_stream_ends_with_a_timeout_event() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await _half_a_stream(peer)
        await peer.until_closed()

    answer = await _fault(script, idle_timeout=0.2)
    assert b'"code": 504' in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.asyncio
async def test_a_half_sent_event_is_ended_before_the_error_event() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        await peer.chunk(b"data: {")
        await _reset_later(peer)

    answer = await _fault(script)
    assert answer.body.startswith(b'data: {\n\ndata: {"error": {')


@pytest.mark.asyncio
async def test_a_messages_stream_gets_its_own_kind_of_error_event() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        await peer.chunk(b"event: message_start\ndata: {}\n\n")
        await _reset_later(peer)

    async with scene(script) as (_, _, client):
        answer = await client.ask("POST", "/v1/messages", body=b"{}")
    event = answer.body.split(b"\n\n")[1].split(b"\n")
    assert event[0] == b"event: error"
    assert json.loads(event[1].removeprefix(b"data: "))["type"] == "error"
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize(
    ("field", "body", "length"),
    [
        ("content-type: application/json", b'{"a": ', True),
        ("content-type: application/json", b'{"a": ', False),
        (EVENT_STREAM + "\r\ncontent-encoding: gzip", b"\x1f\x8b", False),
    ],
    ids=["with-length", "chunked", "compressed-events"],
)
@pytest.mark.asyncio
async def test_any_other_body_that_breaks_off_is_cut(field: str, body: bytes, length: bool) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        framing = "content-length: 100" if length else "transfer-encoding: chunked"
        await peer.answer(b"", *field.split("\r\n"), framing, length=False)
        await (peer.send(body) if length else peer.chunk(body))
        await _reset_later(peer)

    answer = await _fault(script)
    assert (answer.status, answer.complete) == (200, False)


@pytest.mark.asyncio
async def test_invalid_chunks_cut_the_body() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.start_stream("content-type: application/json")
        await peer.send(b"5\r\nhello\r\n")
        await asyncio.sleep(0.05)
        await peer.send(b"zz\r\nboom")

    answer = await _fault(script)
    assert (answer.status, answer.complete) == (200, False)


class _Examining(NoRules):
    """Has bodies read whole, or not."""

    def __init__(self, examined: bool) -> None:
        self._examined = examined

    def route_of(self, method: str, path: str) -> str | None:
        return path if self._examined else None

    def examine(self, route: str, body: bytes) -> Examination:
        return Examination()


# Clients that leave


@pytest.mark.asyncio
async def test_a_client_that_leaves_before_the_header_aborts_the_request() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await backend.hang(peer)

    async with scene(script) as (backend, gate, client):
        await client.send("POST", "/v1/completions", body=b"{}")
        await eventually(lambda: backend.seen)
        client.leave()
        async with asyncio.timeout(2):
            await backend.aborted.wait()
        waiting = {"phase": "waiting"}
        await eventually(lambda: gate.metric("proxy_client_disconnects_total", **waiting) == 1)
        await eventually(lambda: backend.open == 0)
        assert gate.metric("proxy_in_flight") == 0


@pytest.mark.asyncio
async def test_a_client_that_leaves_a_stream_aborts_it() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await _half_a_stream(peer)
        await backend.hang(peer)

    async with scene(script) as (backend, gate, client):
        await client.send("POST", "/v1/completions", body=b"{}")
        await client.head()
        await client.part()
        client.leave()
        async with asyncio.timeout(2):
            await backend.aborted.wait()
        response = {"phase": "response"}
        await eventually(lambda: gate.metric("proxy_client_disconnects_total", **response) == 1)


@pytest.mark.asyncio
async def test_a_client_that_leaves_while_it_is_too_slow_to_read_aborts_the_stream() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        while True:
            await peer.chunk(b"x" * 65536)

    async with scene(script) as (backend, gate, client):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a read transport
        await client.send("GET", "/stream")
        await asyncio.sleep(0.3)
        client.leave()
        await eventually(lambda: backend.open == 0)
        await eventually(lambda: gate.metric("proxy_in_flight") == 0)


@pytest.mark.asyncio
async def test_a_client_that_leaves_after_a_long_body_aborts_the_request() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await backend.hang(peer)

    examiner = _Examining(examined=True)
    async with scene(script, examiner=examiner, limits=BodyLimits(2**22)) as (backend, _, client):
        # The server reads 256 KiB at a time and pauses after 64; a paused connection sees no end.
        await client.send("POST", "/v1/x", body=b"x" * (2**20 + 200_000))
        await eventually(lambda: backend.seen)
        client.leave()
        async with asyncio.timeout(2):
            await backend.aborted.wait()


@pytest.mark.asyncio
async def test_a_client_that_leaves_in_its_second_request_aborts_that() -> None:
    async def script(seen: Seen, peer: Peer) -> None:
        if seen.body == b"1":
            await peer.answer(b"first")
        else:
            await backend.hang(peer)

    examiner = _Examining(examined=True)
    async with scene(script, examiner=examiner) as (backend, _, client):
        await client.send("POST", "/v1/x", body=b"1")
        await client.send("POST", "/v1/x", body=b"2")
        assert (await client.rest(await client.head())).body == b"first"
        await eventually(lambda: [seen.body for seen in backend.seen] == [b"1", b"2"])
        client.leave()
        async with asyncio.timeout(2):
            await backend.aborted.wait()


class _Crashing(_Examining):
    def examine(self, route: str, body: bytes) -> Examination:
        raise ZeroDivisionError


@pytest.mark.asyncio
async def test_an_error_of_ours_is_answered_in_the_backends_shape() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        raise AssertionError("nothing is sent")

    async with scene(script, examiner=_Crashing(examined=True)) as (_, gate, client):
        answer = await client.ask("POST", "/v1/x", body=b"{}")
        aborted = {"route": "/v1/x", "outcome": "aborted"}
        await eventually(lambda: gate.metric("proxy_requests_total", **aborted) == 1)
    assert answer.status == 500
    assert json.loads(answer.body)["error"]["type"] == "InternalServerError"
    assert gate.metric("proxy_in_flight") == 0


@pytest.mark.parametrize("examined", [True, False])
@pytest.mark.asyncio
async def test_a_client_that_leaves_in_its_own_body_leaves_nothing_open(examined: bool) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        raise AssertionError("half a request is none")

    async with scene(script, examiner=_Examining(examined)) as (backend, gate, client):
        await client.send("POST", "/v1/x", "content-length: 1000")
        client.writer.write(b"half")
        await eventually(lambda: gate.metric("proxy_in_flight") == 1)
        await asyncio.sleep(0.05)
        client.leave()
        await eventually(lambda: gate.metric("proxy_in_flight") == 0)
        route = "/v1/x" if examined else "other"
        left = {"route": route, "outcome": "client-left"}
        assert gate.metric("proxy_requests_total", **left) == 1
        await eventually(lambda: backend.open == 0)
    assert backend.seen == []


@pytest.mark.asyncio
async def test_many_clients_that_leave_at_any_moment_leave_nothing_open() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await asyncio.sleep(0.02)
        await peer.start_stream()
        for index in range(20):
            await peer.chunk(b"data: %d\n\n" % index)
            await asyncio.sleep(0.005)
        await peer.end_stream()

    async def visit(port: int, stay: float) -> None:
        async with client_of(port) as client:
            await client.send("POST", "/v1/completions", body=b"{}")
            await asyncio.sleep(stay)
            client.leave()

    async with faulty_backend(script) as backend, gate_to(backend.url) as gate:
        await asyncio.gather(*(visit(gate.port, index * 0.001) for index in range(120)))
        await eventually(lambda: gate.metric("proxy_in_flight") == 0)
        await eventually(lambda: backend.open == 0, 6)


# Request bodies


@pytest.mark.parametrize("examined", [True, False])
@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.asyncio
async def test_a_body_over_the_limit_is_a_413(examined: bool, announced: bool) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.until_closed()

    limits = BodyLimits(1000)
    async with scene(script, examiner=_Examining(examined), limits=limits) as (
        backend,
        _gate,
        client,
    ):
        if announced:
            answer = await client.ask("POST", "/v1/x", body=b"x" * 1001)
        else:
            await client.send("POST", "/v1/x", "transfer-encoding: chunked")
            client.writer.write(b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n")
            answer = await client.rest(await client.head())
        await eventually(lambda: backend.open == 0)
    assert answer.status == 413
    assert answer.first("connection") == "close"
    assert "VLLM_ADMISSION_MAX_REQUEST_BYTES" in str(_error(answer)["message"])


@pytest.mark.parametrize("examined", [True, False])
@pytest.mark.asyncio
async def test_a_body_that_trickles_in_is_a_408(examined: bool) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.until_closed()

    limits = BodyLimits(2**20, grace=0.2, min_rate=1000.0)
    async with scene(script, examiner=_Examining(examined), limits=limits) as (
        _backend,
        _gate,
        client,
    ):
        await client.send("POST", "/v1/x", "content-length: 1000")
        client.writer.write(b"half")
        answer = await client.rest(await client.head())
    assert answer.status == 408
    assert "only 4 bytes" in str(_error(answer)["message"])


@pytest.mark.asyncio
async def test_an_answer_before_the_body_is_over_passes_at_once() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, gate_to(url) as gate, client_of(gate.port) as client:
        await client.send("POST", "/v1/x", "content-length: 100000")
        client.writer.write(b"some")
        async with asyncio.timeout(2):
            answer = await client.rest(await client.head())
        await eventually(lambda: gate.metric("proxy_in_flight") == 0)
    assert (answer.status, answer.body) == (401, b"no")


@pytest.mark.asyncio
async def test_expect_100_continue_is_answered_here() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await peer.answer(request.body)

    async with scene(script) as (backend, _, client):
        await client.send("POST", "/v1/x", "expect: 100-continue", "content-length: 4")
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        client.writer.write(b"body")
        answer = await client.rest(await client.head())
    assert answer.body == b"body"
    assert backend.seen[0].all("expect") == []


@pytest.mark.asyncio
async def test_without_a_backend_everything_is_a_503_that_says_what_to_do() -> None:
    relay = Relay(None, NoRules(), RelayMetrics(CollectorRegistry()), BodyLimits(1000))
    async with listening(relay) as port, client_of(port) as client:
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
    assert answer.status == 503
    assert answer.first("retry-after") is not None
    assert "VLLM_ADMISSION_BACKEND_URL" in str(_error(answer)["message"])


@pytest.mark.asyncio
async def test_a_backend_that_comes_back_is_used_again() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(b"up")

    port = _closed_port()
    async with gate_to(f"http://127.0.0.1:{port}") as gate, client_of(gate.port) as client:
        assert (await client.ask("GET", "/health")).status == 502
        backend = FaultyBackend(script)
        server = await asyncio.start_server(backend.connection, "127.0.0.1", port)
        try:
            assert (await client.ask("GET", "/health")).body == b"up"
        finally:
            server.close()
