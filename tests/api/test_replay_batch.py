"""POST /replay/batch on a real socket and in memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from app.api import replay_batch, replay_workers
from app.api.replay_schemas import ReplayBatchLine, ReplayFailure, ReplayReport, ReplayRow
from app.errors import AdmissionError
from app.main import create_app
from app.replay.wire.case import read_case
from app.settings import Settings
from tests.api.test_replay import case
from tests.support import client_of, replaying_here, serving

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NDJSON = {"content-type": "application/x-ndjson"}
LIMIT = 200_000


def line(identity: Any = None, **changes: Any) -> bytes:
    body = {**case(), **changes}
    if identity is not None:
        body = {"id": identity, **body}
    return json.dumps(body).encode() + b"\n"


def answers(body: bytes) -> list[dict[str, Any]]:
    """Every line of an answer, each of them valid."""
    assert body.endswith(b"\n") or not body
    lines = [json.loads(part) for part in body.splitlines()]
    for answer in lines:
        ReplayBatchLine.model_validate(answer)
    return lines


@pytest.fixture
def app() -> FastAPI:
    return replaying_here(create_app(Settings(max_replay_line_bytes=LIMIT, replay_workers=1)))


@pytest_asyncio.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


async def post(client: httpx.AsyncClient, body: bytes, **headers: str) -> list[dict[str, Any]]:
    response = await client.post("/replay/batch", content=body, headers={**NDJSON, **headers})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return answers(response.content)


@pytest.mark.asyncio
async def test_every_line_is_answered_in_order(client: httpx.AsyncClient) -> None:
    body = line(1) + b"\n  \r\n" + b"{broken\n" + line({"a": [2]}) + line("last").rstrip(b"\n")
    first, broken, second, last = await post(client, body)
    assert [first["id"], second["id"], last["id"]] == [1, {"a": [2]}, "last"]
    assert first["verdict"] == second["verdict"] == last["verdict"] == "consistent"
    assert (broken["line"], broken["error"]["status"]) == (4, 400)


@pytest.mark.asyncio
async def test_an_empty_body_has_an_empty_answer(client: httpx.AsyncClient) -> None:
    assert await post(client, b"") == []
    assert await post(client, b"\n\n") == []


@pytest.mark.asyncio
async def test_nan_in_evidence_is_located(client: httpx.AsyncClient) -> None:
    (answer,) = await post(client, line("x").replace(b"-0.1797446459531784", b"NaN", 1))
    assert (answer["id"], answer["line"]) == ("x", 1)
    (problem,) = answer["error"]["errors"]
    assert problem["pointer"] == "/response/choices/0/logprobs/content/0/logprob"


@pytest.mark.asyncio
@pytest.mark.parametrize("place", [0, LIMIT, 10 * LIMIT])
async def test_a_line_that_is_too_long_is_answered_and_the_next_one_read(
    client: httpx.AsyncClient, place: int
) -> None:
    long = b'{"id": "long", "x": "' + b"x" * (LIMIT + place) + b'"}\n'
    fine, refused, after = await post(client, line(0) + long + line(2))
    assert (refused["id"], refused["line"], refused["error"]["status"]) == ("long", 2, 413)
    assert [fine["id"], after["id"]] == [0, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "identity"),
    [
        (b'{"id": "a\\"b", "x": ', 'a"b'),
        (b'{"id": -1.5, oops}', -1.5),
        (b'{"id": 01, oops}', None),
        (b'{"id": 1e999}', None),
        (b'{"id": "\\ud800"}', "\ud800"),
        (b'{"id": NaN}', None),
        (b'{"x": {"id": 1}', None),
        (b"[1]", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
async def test_an_unusable_line_keeps_its_id_where_that_can_be_told(
    client: httpx.AsyncClient, text: bytes, identity: Any
) -> None:
    (answer,) = await post(client, text)
    assert answer.get("id") == identity
    assert answer["line"] == 1


@pytest.mark.asyncio
async def test_an_id_that_json_cannot_hold_is_refused(client: httpx.AsyncClient) -> None:
    for identity in (b"NaN", b"1e999", b"[[Infinity]]"):
        (answer,) = await post(client, line("*").replace(b'"*"', identity))
        assert answer["error"]["errors"][0]["pointer"] == "/id"


@pytest.mark.asyncio
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_compressed_bodies_are_undone(client: httpx.AsyncClient, encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zstd.compress
    body = b"".join(line(i) for i in range(5))
    headers = {"content-encoding": encoding}
    assert [a["id"] for a in await post(client, compress(body), **headers)] == list(range(5))
    single = await client.post("/replay", content=compress(line(7)), headers=headers)
    assert single.json()["id"] == 7


@pytest.mark.asyncio
async def test_an_unknown_encoding_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/replay/batch", content=b"", headers={"content-encoding": "br"})
    assert response.status_code == 415


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", [-9, -200])
async def test_damage_in_the_middle_leaves_the_answer_valid(
    client: httpx.AsyncClient, cut: int
) -> None:
    body = gzip.compress(line(0) + line(1) + line(2))[:cut]
    *fine, failed = await post(client, body, **{"content-encoding": "gzip"})
    assert all(answer["verdict"] == "consistent" for answer in fine)
    assert "gzip" in failed["error"]["detail"]
    assert failed["line"] == len(fine) + 1


@pytest.mark.asyncio
async def test_an_internal_error_is_one_line_and_the_rest_goes_on(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:

    def crash(text: bytes) -> Any:
        if b'"crash"' in text:
            raise ZeroDivisionError
        return read_case(text)

    monkeypatch.setattr("app.replaying.read_case", crash)
    fine, crashed, after = await post(client, line(0) + line("crash") + line(2))
    assert crashed["error"]["status"] == 500
    assert (crashed["id"], crashed["line"]) == ("crash", 2)
    assert fine["verdict"] == after["verdict"] == "consistent"


@pytest.mark.asyncio
async def test_rows_follow_their_report(client: httpx.AsyncClient) -> None:
    response = await client.post("/replay/batch?detail=rows", content=line("a") + line("b"))
    lines = answers(response.content)
    assert len(lines) == 2 * 13
    for start, identity in ((0, "a"), (13, "b")):
        ReplayReport.model_validate(lines[start])
        for number, row in enumerate(lines[start + 1 : start + 13]):
            ReplayRow.model_validate(row)
            assert (row["id"], row["row"], row["outcome"]) == (identity, number, "exact")
    single = await client.post("/replay?detail=rows", content=line("a"))
    assert single.headers["content-type"] == "application/x-ndjson"
    expected = [{k: v for k, v in row.items() if k != "line"} for row in lines[:13]]
    assert answers(single.content) == expected


@pytest.mark.asyncio
async def test_answers_come_while_the_body_is_still_sent(app: FastAPI) -> None:
    arrived = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield line(1) + line(2)[:100]
        await asyncio.wait_for(arrived.wait(), 20)
        yield line(2)[100:]

    # httpx sends its whole body first, so this client writes HTTP by hand.
    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /replay/batch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n"
        )
        parts = body()
        writer.write(chunk(await anext(parts)))
        head = await asyncio.wait_for(reader.readuntil(b'"id":1,'), 20)
        assert head.startswith(b"HTTP/1.1 200")
        arrived.set()
        writer.write(chunk(await anext(parts)) + b"0\r\n\r\n")
        rest = await asyncio.wait_for(reader.read(), 20)
        assert b'"id":2,' in rest
        writer.close()
        await writer.wait_closed()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.mark.asyncio
async def test_a_client_that_sends_all_before_it_reads_is_served(app: FastAPI) -> None:
    def body() -> Iterator[bytes]:
        for number in range(1500):
            yield b'{"id": %d, "x": "%s"}\n' % (number, b"x" * 2000)

    def send(url: str) -> bytes:
        with httpx.Client() as client:
            return client.post(f"{url}/replay/batch", content=body(), timeout=60).content

    async with serving(app) as url:
        lines = answers(await asyncio.to_thread(send, url))
    assert [answer["id"] for answer in lines] == list(range(1500))
    ReplayFailure.model_validate(lines[0])


@pytest.mark.asyncio
async def test_a_client_that_leaves_stops_the_work(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gone = threading.Event(), threading.Event()
    handled = 0
    monkeypatch.setattr(replay_batch, "_LINES_AT_ONCE", 1)

    def handler(**_: Any) -> Any:
        def handle(line: Any) -> Any:
            nonlocal handled
            handled += 1
            begun.set()
            assert gone.wait(20)
            raise AdmissionError("slow")

        return handle

    monkeypatch.setattr(replay_workers, "line_handler", handler)
    bomb = gzip.compress(b"{}\n" * 1_000_000)
    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /replay/batch HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: %d\r\n\r\n" % len(bomb) + bomb
        )
        await asyncio.to_thread(begun.wait, 20)
        # The event loop is free while a line is handled.
        async with httpx.AsyncClient() as other:
            assert (await other.get(f"{url}/livez")).text == "ok\n"
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.1)
        gone.set()
    assert handled == 1


@pytest.mark.asyncio
async def test_a_client_that_reads_nothing_is_let_go(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_batch, "_STALLED_SECONDS", 0.05)
    monkeypatch.setattr(replay_batch, "_WAITING_BYTES", 10)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": line(1) + line(2) + line(3), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/replay/batch",
        "headers": [],
    }
    scope |= {"query_string": b"", "http_version": "1.1", "server": ("x", 1), "scheme": "http"}
    await asyncio.wait_for(app(scope, receive, send), 20)
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
