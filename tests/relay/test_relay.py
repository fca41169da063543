"""The relay over real sockets: what goes in comes out, unchanged and at once."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from app.relay.client import BodyLimits
from app.request_rules.examination import Examination
from tests.relay.faulty import Peer, Seen, faulty_backend
from tests.relay.harness import (
    Gate,
    client_of,
    eventually,
    gate_to,
    scene,
)


async def _echo(request: Seen, peer: Peer) -> None:
    await peer.answer(request.body, "content-type: application/json")


@pytest.mark.asyncio
async def test_unary_bytes_pass_both_ways_unchanged() -> None:
    body = b'{"prompt": "\xc3\xa4", "x": 1e5,   "spaced" :[1 ,2]}'
    async with scene(_echo) as (backend, _, client):
        answer = await client.ask("POST", "/v1/embeddings?a=1&b=%2F&c=%7E", body=body)
    assert (answer.status, answer.body, answer.complete) == (200, body, True)
    assert answer.all("content-length") == [str(len(body))]
    assert backend.seen[0].body == body
    assert backend.seen[0].line == "POST /v1/embeddings?a=1&b=%2F&c=%7E HTTP/1.1"


@pytest.mark.parametrize("target", ["/a%2Fb/%E4?q=%zz&x=a+b;c", "/v1/x?", "/a//b/../c", "/%7Euser"])
@pytest.mark.asyncio
async def test_the_target_is_not_requoted_or_normalised(target: str) -> None:
    async with scene(_echo) as (backend, _, client):
        await client.ask("GET", target)
    assert backend.seen[0].line == f"GET {target.removesuffix('?')} HTTP/1.1"


@pytest.mark.asyncio
async def test_a_path_in_the_backend_url_comes_first() -> None:
    async with (
        faulty_backend(_echo) as backend,
        gate_to(backend.url + "/base/") as gate,
        client_of(gate.port) as client,
    ):
        await client.ask("GET", "/health")
    assert backend.seen[0].line == "GET /base/health HTTP/1.1"


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "POST"])
@pytest.mark.asyncio
async def test_methods_pass_without_and_with_a_body(method: str) -> None:
    async with scene(_echo) as (backend, _, client):
        bare = await client.ask(method, "/x")
        full = await client.ask(method, "/x", body=b"abc")
    assert (bare.body, full.body) == (b"", b"abc")
    assert [seen.line.split()[0] for seen in backend.seen] == [method, method]


@pytest.mark.asyncio
async def test_head_keeps_the_length_and_has_no_body() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 42\r\n\r\n")

    async with scene(script) as (_, _, client):
        answer = await client.ask("HEAD", "/health")
        again = await client.ask("HEAD", "/health")
    assert (answer.status, answer.first("content-length"), again.status) == (200, "42", 200)


@pytest.mark.parametrize(
    "status", ["204 No Content", "304 Not Modified", "304 Not Modified\r\ncontent-length: 20"]
)
@pytest.mark.asyncio
async def test_statuses_without_a_body_end_at_the_header(status: str) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 {status}\r\n\r\n".encode())

    async with scene(script) as (_, _, client):
        await client.send("GET", "/x")
        head = await client.head()
        assert head.all("transfer-encoding") == []
        await client.send("GET", "/x")
        assert (await client.head()).status == head.status == int(status[:3])


@pytest.mark.asyncio
async def test_chunked_request_bodies_are_streamed_on() -> None:
    async with scene(_echo) as (backend, _, client):
        await client.send("POST", "/v1/audio/transcriptions", "transfer-encoding: chunked")
        for part in (b"5\r\nhello\r\n", b"6\r\n world\r\n", b"0\r\n\r\n"):
            client.writer.write(part)
            await asyncio.sleep(0.02)
        answer = await client.rest(await client.head())
    assert answer.body == b"hello world"
    assert backend.seen[0].all("transfer-encoding") == ["chunked"]


@pytest.mark.asyncio
async def test_large_bodies_pass_whole() -> None:
    body = bytes(range(256)) * 12_000
    limits = BodyLimits(4 * 2**20)
    async with scene(_echo, limits=limits) as (_, _, client):
        answer = await client.ask("POST", "/v1/files", body=body)
    assert answer.body == body


@pytest.mark.asyncio
async def test_large_examined_bodies_pass_whole() -> None:
    body = bytes(range(256)) * 12_000
    limits = BodyLimits(4 * 2**20)
    async with scene(_echo, limits=limits, examiner=_Always()) as (_, _, client):
        answer = await client.ask("POST", "/v1/x", body=body)
    assert answer.body == body


@pytest.mark.asyncio
async def test_events_arrive_one_by_one_while_the_backend_is_still_busy() -> None:
    go_on = asyncio.Event()

    async def script(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        await peer.chunk(b"data: 1\n\n")
        await go_on.wait()
        await peer.chunk(b"data: 2\n\n")
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()

    async with scene(script) as (_, _, client):
        await client.send("POST", "/v1/completions", body=b"{}")
        head = await client.head()
        assert head.first("content-type") == "text/event-stream; charset=utf-8"
        async with asyncio.timeout(2):
            assert await client.part() == b"data: 1\n\n"
        go_on.set()
        rest = await client.rest(head)
    assert rest.complete
    assert rest.body == b"data: 2\n\ndata: [DONE]\n\n"


@pytest.mark.asyncio
async def test_a_slow_client_slows_the_backend_down() -> None:
    sent = 0

    async def script(_: Seen, peer: Peer) -> None:
        nonlocal sent
        await peer.start_stream()
        while sent < 2000 * 65536:
            await peer.chunk(b"x" * 65536)
            sent += 65536
        await peer.end_stream()

    async with scene(script) as (backend, _, client):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a read transport
        await client.send("GET", "/stream")
        await asyncio.sleep(0.5)
        stuck = sent
        await asyncio.sleep(0.3)
        assert sent == stuck < 2000 * 65536
        client.leave()
        await eventually(lambda: backend.open == 0)


@pytest.mark.asyncio
async def test_compressed_bodies_are_not_touched() -> None:
    packed = gzip.compress(b'{"a": 1}')

    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(packed, "content-encoding: gzip", "content-type: application/json")

    async with scene(script) as (_, _, client):
        answer = await client.ask("GET", "/v1/models", "accept-encoding: gzip")
    assert answer.body == packed
    assert answer.first("content-encoding") == "gzip"


@pytest.mark.asyncio
async def test_fields_of_one_hop_stay_there_and_repeats_are_kept() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(
            b"",
            "set-cookie: a=1",
            "set-cookie: b=2",
            "connection: x-hop-too",
            "x-hop-too: 1",
            "keep-alive: timeout=5",
            "server: uvicorn",
            "date: Thu, 01 Jan 2026 00:00:00 GMT",
        )

    async with scene(script) as (backend, _, client):
        answer = await client.ask(
            "GET",
            "/x",
            "connection: keep-alive, X-Hop",
            "x-hop: 1",
            "te: trailers",
            "proxy-authorization: Basic eA==",
            "authorization: Bearer key",
            "x-twice: 1",
            "x-twice: 2",
            "x-latin: \xe4",
            "cookie: c=3",
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "user-agent: test",
        )
    sent = backend.seen[0]
    assert answer.all("set-cookie") == ["a=1", "b=2"]
    assert answer.all("server") == ["uvicorn"]
    assert answer.all("date") == ["Thu, 01 Jan 2026 00:00:00 GMT"]
    assert answer.all("via") == sent.all("via") == ["1.1 vllm-admission"]
    for name in ("x-hop-too", "keep-alive"):
        assert answer.all(name) == []
    for name in ("x-hop", "te", "proxy-authorization", "accept", "accept-encoding", "connection"):
        assert sent.all(name) == []
    assert sent.all("x-twice") == ["1", "2"]
    assert sent.all("authorization") == ["Bearer key"]
    assert sent.all("host") == [backend.url.removeprefix("http://")]
    assert sent.all("traceparent")[0].startswith("00-0af7")
    assert sent.all("user-agent") == ["test"]


@pytest.mark.asyncio
async def test_cookies_of_one_client_never_reach_another() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(b"", "set-cookie: session=secret; Path=/")

    async with faulty_backend(script) as backend, gate_to(backend.url) as gate:
        for _ in range(2):
            async with client_of(gate.port) as client:
                assert (await client.ask("GET", "/x")).all("set-cookie")
    assert [seen.all("cookie") for seen in backend.seen] == [[], []]


@pytest.mark.asyncio
async def test_redirects_are_the_clients_business() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(b"", "location: /elsewhere", status="307 Temporary Redirect")

    async with scene(script) as (backend, _, client):
        answer = await client.ask("GET", "/x")
    assert (answer.status, answer.first("location")) == (307, "/elsewhere")
    assert len(backend.seen) == 1


class _Always:
    """Examines everything with a fixed outcome."""

    def __init__(self, examination: Examination = Examination()) -> None:  # noqa: B008 - frozen
        self.examination = examination

    def route_of(self, method: str, path: str) -> str | None:
        return path

    def examine(self, route: str, body: bytes) -> Examination:
        return self.examination


@pytest.mark.parametrize(
    ("given", "in_body", "sent"),
    [
        ("abc-1", None, "abc-1"),
        ("abc-1", "from-body", "abc-1"),
        (None, "from-body", "from-body"),
        ("not safe", "from-body", "from-body"),
        (None, "not safe", None),
    ],
)
@pytest.mark.asyncio
async def test_the_request_id_is_the_fields_then_the_bodys(
    given: str | None, in_body: str | None, sent: str | None
) -> None:
    examiner = _Always(Examination(request_id=in_body))
    fields = [f"x-request-id: {given}"] if given else []
    async with scene(_echo, examiner=examiner) as (backend, _, client):
        answer = await client.ask("POST", "/v1/x", *fields, body=b"{}")
    assert backend.seen[0].all("x-request-id") == ([sent] if sent else [])
    (echoed,) = answer.all("x-request-id")
    assert echoed == sent or (sent is None and len(echoed) == 32)


@pytest.mark.asyncio
async def test_an_id_is_minted_and_the_backends_own_echo_wins() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await peer.answer(b"", f"x-request-id: {request.all('x-request-id')[0]}-echo")

    async with scene(script) as (backend, _, client):
        answer = await client.ask("GET", "/x", "x-request-id: \xe4\xe4")
    (minted,) = backend.seen[0].all("x-request-id")
    assert len(minted) == 32
    assert answer.all("x-request-id") == [f"{minted}-echo"]


@pytest.mark.asyncio
async def test_a_refused_request_never_reaches_the_backend() -> None:
    refusal = {"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}}
    examiner = _Always(Examination(refusal=refusal, findings=[("r", "error")]))
    async with scene(_echo, examiner=examiner) as (backend, gate, client):
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
        messages = await client.ask("POST", "/v1/messages", body=b"{}")
        assert gate.metric("request_findings_total", rule="r", severity="error") == 2
        outcome = {"route": "/v1/completions", "outcome": "refused"}
        assert gate.metric("proxy_requests_total", **outcome) == 1
    assert (answer.status, json.loads(answer.body)) == (400, refusal)
    assert json.loads(messages.body) == {"type": "error", **refusal}
    assert backend.seen == []


@pytest.mark.asyncio
async def test_warnings_stand_in_the_response_header() -> None:
    examiner = _Always(Examination(warnings=["a; first", "b; line\r\nbreak \u2026"]))
    async with scene(_echo, examiner=examiner) as (_, _, client):
        answer = await client.ask("POST", "/v1/x", body=b"{}")
    assert answer.all("x-vllm-admission-warning") == ["a; first", "b; line  break ?"]


@pytest.mark.asyncio
async def test_a_hundred_streams_at_once_keep_apart_and_leave_nothing_behind() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await peer.start_stream()
        for index in range(5):
            await peer.chunk(b"data: %s %d\n\n" % (request.body, index))
            await asyncio.sleep(0.01)
        await peer.end_stream()

    async def one(gate: Gate, name: bytes) -> bytes:
        async with client_of(gate.port) as client:
            return (await client.ask("POST", "/v1/completions", body=name)).body

    async with faulty_backend(script) as backend, gate_to(backend.url) as gate:
        names = [b"%d" % number for number in range(100)]
        bodies = await asyncio.gather(*(one(gate, name) for name in names))
        assert gate.metric("proxy_in_flight") == 0
        relaying = {"route": "other", "outcome": "2xx"}
        assert gate.metric("proxy_requests_total", **relaying) == 100
        assert gate.metric("proxy_overhead_seconds_count", route="other") == 100
        assert gate.metric("proxy_upstream_ttfb_seconds_count", route="other") == 100
        # Idle connections to the backend are given up well before vLLM would close them.
        await eventually(lambda: backend.open == 0, 6)
        left = [t for t in asyncio.all_tasks() if "_watch" in repr(t) or "_ask" in repr(t)]
    assert bodies == [b"".join(b"data: %s %d\n\n" % (n, i) for i in range(5)) for n in names]
    assert left == []


@pytest.mark.asyncio
async def test_a_target_that_is_no_path_is_a_400_and_reaches_no_backend() -> None:
    async with scene(_echo) as (backend, _, client):
        answer = await client.ask("OPTIONS", "*")
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["code"] == 400
    assert backend.seen == []
