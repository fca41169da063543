"""What RFC 9110, RFC 9112 and Trace Context ask of whoever stands between two others."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from app.main import create_app
from app.relay.client import BodyLimits
from app.relay.trace import next_hop, received_context
from app.settings import Settings
from tests.relay.faulty import Peer, Seen, faulty_backend
from tests.relay.harness import client_of, gate_to, scene
from tests.support import serving

MULTIPART = (
    b'--x"y\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\n\x00\xff\r\n\r\n--x\r\n"
    b'--x"y\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x"y--\r\n'
)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def _echo(request: Seen, peer: Peer) -> None:
    await peer.answer(request.body, *(f"x-got: {v}" for v in request.all("content-type")))


@pytest.mark.asyncio
async def test_multipart_passes_byte_for_byte() -> None:
    field = 'multipart/form-data; boundary="x\\"y"'
    async with scene(_echo) as (_, _, client):
        answer = await client.ask(
            "POST", "/v1/audio/transcriptions", f"content-type: {field}", body=MULTIPART
        )
    assert answer.body == MULTIPART
    assert answer.first("x-got") == field


@pytest.mark.asyncio
async def test_trailers_end_at_this_hop_and_the_bodies_are_whole() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await peer.answer(b"", "trailer: x-sum", "transfer-encoding: chunked", length=False)
        await peer.chunk(request.body)
        await peer.send(b"0\r\nx-sum: 1\r\n\r\n")

    async with scene(script) as (backend, _, client):
        for _ in range(2):  # the connections on both sides are still in step
            await client.send("POST", "/x", "transfer-encoding: chunked", "trailer: x-mine")
            client.writer.write(b"3\r\nabc\r\n0\r\nx-mine: 1\r\n\r\n")
            answer = await client.rest(await client.head())
            assert (answer.body, answer.complete) == (b"abc", True)
            assert answer.all("trailer") == answer.all("x-sum") == []
    assert [seen.all("trailer") for seen in backend.seen] == [[], []]


@pytest.mark.asyncio
async def test_a_via_of_others_is_kept_and_ours_comes_last() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(b"", "via: 1.1 inner")

    async with scene(script) as (backend, _, client):
        answer = await client.ask("GET", "/x", "via: 1.0 outer")
    assert backend.seen[0].all("via") == ["1.0 outer", "1.1 vllm-admission"]
    assert answer.all("via") == ["1.1 inner", "1.1 vllm-admission"]


@pytest.mark.asyncio
async def test_an_offer_of_another_protocol_is_ours_to_decline() -> None:
    async with scene(_echo) as (backend, _, client):
        answer = await client.ask(
            "GET",
            "/x",
            "connection: Upgrade, HTTP2-Settings",
            "upgrade: h2c",
            "http2-settings: AAMAAABk",
        )
        again = await client.ask("GET", "/x")
    assert (answer.status, again.status) == (200, 200)
    for name in ("upgrade", "http2-settings", "connection"):
        assert backend.seen[0].all(name) == []


@pytest.mark.asyncio
async def test_options_and_its_star_free_target_pass() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(b"", "allow: GET, POST", status="204 No Content", length=False)

    async with scene(script) as (backend, _, client):
        await client.send("OPTIONS", "/v1/models", "origin: https://a.example")
        answer = await client.head()
    assert (answer.status, answer.first("allow")) == (204, "GET, POST")
    assert backend.seen[0].all("origin") == ["https://a.example"]


@pytest.mark.asyncio
async def test_several_requests_at_once_on_one_connection_are_answered_in_order() -> None:
    async with scene(_echo) as (_, _, client):
        for number in range(3):
            await client.send("POST", "/x", body=b"%d" % number)
        bodies = [(await client.rest(await client.head())).body for _ in range(3)]
    assert bodies == [b"0", b"1", b"2"]


@pytest.mark.asyncio
async def test_a_refused_upload_is_told_why_though_it_is_still_sending() -> None:
    async with (
        faulty_backend(_echo) as backend,
        gate_to(backend.url, limits=BodyLimits(1000)) as gate,
        client_of(gate.port) as client,
    ):
        client.writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 50000000\r\n\r\n")
        for _ in range(20):
            client.writer.write(b"z" * 50_000)
            await asyncio.sleep(0.005)
        answer = await client.rest(await client.head())
    assert (answer.status, answer.complete) == (413, True)
    assert backend.seen == []


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (TRACE, True),
        (TRACE.replace("00-0", "cc-0") + "-more", True),
        (TRACE + "-more", False),
        (TRACE.replace("00-0", "ff-0"), False),
        (TRACE.upper(), False),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", False),
        ("", False),
    ],
)
def test_a_trace_is_continued_if_it_is_one(value: str, kept: bool) -> None:
    received = received_context([(b"traceparent", value.encode())])
    following = next_hop(received)
    assert (received is not None) is kept
    assert (following.trace_id == b"0af7651916cd43dd8448eb211c80319c") is kept
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-01", following.traceparent)
    assert following.span_id != b"b7ad6b7169203331"


def test_two_traces_are_none() -> None:
    assert received_context([(b"traceparent", TRACE.encode())] * 2) is None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"traceparent": TRACE, "tracestate": "a=1"}, True),
        ({"traceparent": "nonsense", "tracestate": "a=1"}, False),
        ({}, False),
    ],
)
@pytest.mark.asyncio
async def test_the_backend_gets_a_valid_trace_in_any_case(
    given: dict[str, str], kept: bool
) -> None:
    async with faulty_backend(_echo) as backend:
        app = create_app(Settings(backend_url=backend.url, drift_interval=0))
        async with serving(app) as url, httpx.AsyncClient(trust_env=False) as client:
            await client.get(f"{url}/v1/models", headers=given)
    (value,) = backend.seen[0].all("traceparent")
    received = received_context([(b"traceparent", value.encode())])
    assert received is not None
    assert (value.split("-")[1] == TRACE.split("-")[1]) is kept
    assert backend.seen[0].all("tracestate") == (["a=1"] if kept else [])
