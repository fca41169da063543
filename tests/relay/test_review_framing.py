"""Where a message ends: what cannot be told from the header, and who must not be misled."""

from __future__ import annotations

import asyncio

import pytest

from app.request_rules.examination import Examination
from tests.relay.faulty import Peer, Seen
from tests.relay.harness import scene

_OFFER = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"


class _Watching:
    """Lets every body pass, and remembers it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def route_of(self, method: str, path: str) -> str | None:
        return "/v1/completions" if (method, path) == ("POST", "/v1/completions") else None

    def examine(self, route: str, body: bytes) -> Examination:
        self.bodies.append(body)
        return Examination()


async def _echo(request: Seen, peer: Peer) -> None:
    await peer.answer(request.body)


@pytest.mark.asyncio
@pytest.mark.parametrize("target", ["/v1/completions", "/x"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_body_behind_an_offer_of_another_protocol_is_a_body(
    target: str, chunked: bool, apart: bool
) -> None:
    """curl and Java offer h2c with their first POST; a body taken for requests is smuggling."""
    body = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    head = f"POST {target} HTTP/1.1\r\nhost: a\r\n{_OFFER}\r\n{length}\r\n\r\n".encode()
    examiner = _Watching()
    async with scene(_echo, examiner=examiner) as (backend, _, client):
        for _ in range(2):
            client.writer.write(head if apart else head + framed)
            if apart:
                await asyncio.sleep(0.02)
                client.writer.write(framed[:9])
                await asyncio.sleep(0.02)
                client.writer.write(framed[9:])
            answer = await client.rest(await client.head())
            assert (answer.status, answer.body) == (200, body)
        after = await client.ask("POST", target, body=b"after")
    assert after.body == b"after"
    assert [seen.line for seen in backend.seen] == [f"POST {target} HTTP/1.1"] * 3
    assert [seen.body for seen in backend.seen] == [body, body, b"after"]
    assert examiner.bodies == ([body, body, b"after"] if target != "/x" else [])


@pytest.mark.asyncio
async def test_requests_behind_an_offer_without_a_body_are_answered() -> None:
    offer = f"GET /x HTTP/1.1\r\nhost: a\r\n{_OFFER}\r\n\r\n".encode()
    async with scene(_echo) as (backend, _, client):
        client.writer.write(offer + b"GET /y HTTP/1.1\r\nhost: a\r\n\r\n")
        for _ in range(2):
            assert (await client.rest(await client.head())).status == 200
    assert [seen.line for seen in backend.seen] == ["GET /x HTTP/1.1", "GET /y HTTP/1.1"]


@pytest.mark.asyncio
async def test_an_offer_with_a_body_of_unknown_length_is_a_400() -> None:
    head = f"POST /x HTTP/1.1\r\nhost: a\r\n{_OFFER}\r\ntransfer-encoding: chunked, gzip\r\n\r\n"
    async with scene(_echo) as (backend, _, client):
        client.writer.write(head.encode() + b"3\r\nabc\r\n0\r\n\r\n")
        assert (await client.head()).status == 400
    assert backend.seen == []


@pytest.mark.asyncio
@pytest.mark.parametrize("target", ["/v1/completions", "/x"])
async def test_fields_of_a_trailer_never_become_fields_of_the_header(target: str) -> None:
    fields = b"authorization: Bearer t\r\nx-data-parallel-rank: 7\r\nconnection: accept\r\n"
    async with scene(_echo, examiner=_Watching()) as (backend, _, client):
        await client.send("POST", target, "transfer-encoding: chunked", "accept: */*")
        client.writer.write(b"3\r\nabc\r\n0\r\n" + fields + b"\r\n")
        answer = await client.rest(await client.head())
    assert answer.body == b"abc"
    assert backend.seen[0].all("authorization") == backend.seen[0].all("x-data-parallel-rank") == []
    assert backend.seen[0].all("accept") == ["*/*"]


@pytest.mark.asyncio
@pytest.mark.parametrize("target", ["/v1/completions", "/x"])
@pytest.mark.parametrize("blanks", [b" ", b"\t \t"])
async def test_blanks_behind_a_length_hide_no_body(target: str, blanks: bytes) -> None:
    """The length was forwarded without the body, and the next request was taken for that."""
    examiner = _Watching()
    async with scene(_echo, examiner=examiner) as (backend, _, client):
        for body in (b"first", b"second"):
            fields = b"host: a\r\nx-request-id: id-1%b\r\ncontent-length: %d%b\r\n\r\n"
            client.writer.write(b"POST %b HTTP/1.1\r\n" % target.encode())
            client.writer.write(fields % (blanks, len(body), blanks) + body)
            answer = await client.rest(await client.head())
            assert (answer.status, answer.body) == (200, body)
    assert [seen.body for seen in backend.seen] == [b"first", b"second"]
    assert backend.seen[0].all("x-request-id") == ["id-1"]
    assert examiner.bodies == ([b"first", b"second"] if target != "/x" else [])
