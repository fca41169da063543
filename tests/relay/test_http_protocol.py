"""The listening side's bounds: header size and time, and the cut of a client that is stuck."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from app.relay.http_protocol import HeaderLimits
from tests.relay.harness import RawClient, client_of, listening

LIMITS = HeaderLimits(max_bytes=2000, timeout=0.1)


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the length of the body, after half of it where the path says so."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["path"] == "/slow":
        await asyncio.sleep(0.25)
    text = str(len(body)).encode()
    head = [(b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": text})


@asynccontextmanager
async def _client(limits: HeaderLimits = LIMITS) -> AsyncIterator[RawClient]:
    async with listening(_app, limits) as port, client_of(port) as client:
        yield client


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * 3000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-many: y\r\n" * 300 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-endless: " + b"y" * 3000,
    ],
    ids=["target", "field", "fields", "no-end"],
)
@pytest.mark.asyncio
async def test_too_large_a_header_is_a_431(head: bytes) -> None:
    async with _client() as client:
        client.writer.write(head)
        answer = await client.rest(await client.head())
        assert await client.reader.read() == b""
    assert (answer.status, answer.first("connection")) == (431, "close")
    error = json.loads(answer.body)["error"]
    assert (error["code"], error["type"]) == (431, "RequestHeaderFieldsTooLargeError")
    assert "VLLM_ADMISSION_MAX_HEADER_BYTES" in error["message"]


@pytest.mark.asyncio
async def test_an_endless_header_is_cut_off_long_before_its_end() -> None:
    async with _client(HeaderLimits(2000, 5)) as client:
        client.writer.write(b"GET / HTTP/1.1\r\nx-endless: ")
        for _ in range(10):
            client.writer.write(b"y" * 500)
            await asyncio.sleep(0.01)
        assert (await client.head()).status == 431


@pytest.mark.asyncio
async def test_bodies_do_not_count_and_connections_are_kept() -> None:
    async with _client() as client:
        for _ in range(3):
            answer = await client.ask("POST", "/", "x-some: " + "y" * 1500, body=b"z" * 10_000)
            assert (answer.status, answer.body) == (200, b"10000")


@pytest.mark.asyncio
async def test_a_header_that_trickles_in_is_a_408() -> None:
    async with _client() as client:
        client.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
        answer = await client.rest(await client.head())
        assert await client.reader.read() == b""
    assert answer.status == 408
    assert b"VLLM_ADMISSION_HEADER_TIMEOUT" in answer.body


@pytest.mark.asyncio
async def test_a_client_that_says_nothing_is_let_go_without_a_word() -> None:
    async with _client() as client:
        assert await client.reader.read() == b""


@pytest.mark.asyncio
async def test_a_header_in_pieces_is_taken_if_it_comes_in_time() -> None:
    async with _client(HeaderLimits(2000, 1)) as client:
        for piece in (
            b"POST /sl",
            b"ow HTTP/1.1\r\nho",
            b"st: x\r\ncontent-length: 2\r\n",
            b"\r\nab",
        ):
            client.writer.write(piece)
            await asyncio.sleep(0.02)
        assert (await client.rest(await client.head())).body == b"2"


@pytest.mark.asyncio
async def test_an_answer_under_way_is_not_written_into() -> None:
    async with _client() as client:
        await client.send("GET", "/slow")
        client.writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * 3000)
        with pytest.raises(asyncio.IncompleteReadError) as cut:
            await client.head()
    assert cut.value.partial == b""


@pytest.mark.asyncio
async def test_what_is_no_request_gets_uvicorns_400() -> None:
    async with _client() as client:
        client.writer.write(b"\x16\x03\x01 no http\r\n\r\n")
        answer = await client.rest(await client.head())
    assert (answer.status, answer.body) == (400, b"Invalid HTTP request received.")


@pytest.mark.asyncio
async def test_a_malformed_body_is_a_400_too_and_only_that() -> None:
    async with _client() as client:
        client.writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\nabc"
        )
        answer = await client.rest(await client.head())
        assert await client.reader.read() == b""
    assert (answer.status, answer.body) == (400, b"Invalid HTTP request received.")


@pytest.mark.asyncio
async def test_a_malformed_body_behind_an_answer_under_way_ends_the_connection() -> None:
    async with _client() as client:
        await client.send("GET", "/slow")
        client.writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc"
        )
        assert await client.reader.read() == b""
