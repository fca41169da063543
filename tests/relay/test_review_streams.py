"""Random pipelines of requests, asked directly and through the gate, have the same answers.

What the gate takes for the end of a message must be what its backend takes for it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.request_rules.examination import Examination
from tests.relay.harness import RawClient, client_of, eventually, gate_to

_PIPELINES = 60
_HIDDEN = b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"


class _Everything:
    """Lets every body of one route pass."""

    def route_of(self, method: str, path: str) -> str | None:
        return path if (method, path) == ("POST", "/v1/completions") else None

    def examine(self, route: str, body: bytes) -> Examination:
        return Examination()


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the request; `/early` before it has read the body."""
    body, more, early = b"", True, scope["path"] == "/early"
    while more and not early:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    seen = [scope["method"], scope["path"], scope["query_string"].decode(), body.decode()]
    answer = json.dumps(seen).encode()
    fields = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 404 if early else 200, "headers": fields})
    await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def _backend() -> AsyncIterator[int]:
    """vLLM's own kind of server."""
    config = uvicorn.Config(
        _echo, host="127.0.0.1", port=0, http="httptools", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


class _Writer:
    """Writes requests in any way that HTTP allows."""

    def __init__(self, seed: int) -> None:
        self._any = random.Random(seed)  # noqa: S311 - only test data

    def pipeline(self) -> tuple[bytes, int]:
        number = self._any.randint(1, 3)
        requests = [self._request(last=at == number - 1) for at in range(number)]
        return b"".join(requests), number

    def pieces(self, data: bytes) -> Iterable[bytes]:
        cuts = sorted(self._any.sample(range(1, len(data)), self._any.randint(0, 3)))
        return (data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True))

    def _request(self, *, last: bool) -> bytes:
        one = self._any.choice
        body = one((b"", b"{}", _HIDDEN, b"x" * self._any.randint(1, 300)))
        fields = [b"host: a"]
        how = one(("length", "length", "chunks", "none"))
        if how == "length":
            length = one((b"", b"0", b"00")) + str(len(body)).encode()
            fields.append(self._field(b"content-length", length))
        elif how == "chunks":
            fields.append(self._field(b"transfer-encoding", one((b"chunked", b"Chunked"))))
            body = self._chunked(body)
        else:
            body = b""
        if last:
            fields.append(b"connection: close")
        elif self._any.random() < 0.2:
            fields.append(one((b"connection: content-length", b"connection: Transfer-Encoding")))
        self._any.shuffle(fields)
        targets = [b"/v1/completions", b"/x", b"/v1/completions?a=%20", b"/x%2Fy"]
        target = one(targets if last else [*targets, b"/early"])
        line = one((b"POST", b"POST", b"GET", b"PUT")) + b" " + target + b" HTTP/1.1"
        return b"\r\n".join([line, *fields]) + b"\r\n\r\n" + body

    def _field(self, name: bytes, value: bytes) -> bytes:
        one = self._any.choice
        # The parser takes no tab behind a coding.
        blanks = (b"", b" ", b"  ") if name == b"transfer-encoding" else (b"", b" ", b"\t", b"  ")
        return one((name, name.title(), name.upper())) + b":" + one(blanks) + value + one(blanks)

    def _chunked(self, body: bytes) -> bytes:
        one, framed = self._any.choice, b""
        while body:
            size = self._any.randint(1, len(body))
            framed += one((b"%x", b"%X", b"0%x")) % size + one((b"", b";a=b")) + b"\r\n"
            framed += body[:size] + b"\r\n"
            body = body[size:]
        return framed + b"0\r\n" + one((b"", b"x-sum: 1\r\n")) + b"\r\n"


async def _answers(client: RawClient, pieces: Iterable[bytes], number: int) -> list[object]:
    for piece in pieces:
        client.writer.write(piece)
        await asyncio.sleep(0)
    found: list[object] = []
    for _ in range(number):
        answer = await client.rest(await client.head())
        found.append((answer.status, answer.body))
    found.append(await client.reader.read())
    return found


@pytest.mark.asyncio
async def test_every_message_ends_where_the_backend_would_have_it_end() -> None:
    writer = _Writer(seed=20)
    async with _backend() as port, gate_to(f"http://127.0.0.1:{port}", examiner=_Everything()) as g:
        for _ in range(_PIPELINES):
            data, number = writer.pipeline()
            pieces = list(writer.pieces(data))
            both = []
            for at in (port, g.port):
                async with client_of(at) as client:
                    both.append(await _answers(client, pieces, number))
            assert both[0] == both[1], data
