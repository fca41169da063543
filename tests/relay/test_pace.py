"""Exchanges that take too long: the client's reading, and the answer as a whole."""

from __future__ import annotations

import asyncio
import json

import pytest

from app.relay.relay import Pace
from tests.relay.faulty import Peer, Seen, faulty_backend
from tests.relay.harness import client_of, eventually, gate_to


async def _endless(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    while True:
        await peer.chunk(b"data: " + b"x" * 65536 + b"\n\n")


async def _trickle(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    while True:
        await peer.chunk(b"data: 1\n\n")
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_client_that_reads_nothing_is_cut_off_and_aborts_the_request() -> None:
    pace = Pace(write_timeout=0.1)
    async with (
        faulty_backend(_endless) as backend,
        gate_to(backend.url, pace=pace) as gate,
        client_of(gate.port) as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a read transport
        await client.send("GET", "/v1/stream")
        slow = {"route": "other", "outcome": "client-too-slow"}
        await eventually(lambda: gate.metric("proxy_requests_total", **slow) == 1)
        await eventually(lambda: backend.open == 0)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined] # a read transport
        answer = await client.rest(await client.head())
    assert not answer.complete


@pytest.mark.asyncio
async def test_a_client_that_reads_slowly_but_reads_is_served() -> None:
    sent = b"".join(b"data: %d\n\n" % n + b"x" * 60_000 + b"\n\n" for n in range(40))

    async def script(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        for start in range(0, len(sent), 60_000):
            await peer.chunk(sent[start : start + 60_000])
        await peer.end_stream()

    pace = Pace(write_timeout=0.2)
    async with faulty_backend(script) as backend, gate_to(backend.url, pace=pace) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", gate.port, limit=1000)
        writer.write(b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = 0
        while part := await reader.read(100_000):
            received += len(part)
            await asyncio.sleep(0.005)
        writer.close()
    assert received > len(sent)


@pytest.mark.asyncio
async def test_a_stream_over_its_time_ends_with_one_error_event() -> None:
    pace = Pace(max_seconds=0.1)
    async with (
        faulty_backend(_trickle) as backend,
        gate_to(backend.url, pace=pace) as gate,
        client_of(gate.port) as client,
    ):
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
        await eventually(lambda: backend.open == 0)
        late = {"route": "other", "outcome": "stream-too-long"}
        assert gate.metric("proxy_requests_total", **late) == 1
    assert answer.complete
    *events, error, done, end = answer.body.split(b"\n\n")
    assert set(events) == {b"data: 1"}
    assert (done, end) == (b"data: [DONE]", b"")
    body = json.loads(error.removeprefix(b"data: "))["error"]
    assert (body["code"], body["vllm_admission"]) == (504, "stream-too-long")


@pytest.mark.asyncio
async def test_an_answer_not_begun_in_its_time_is_a_504() -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.until_closed()

    pace = Pace(max_seconds=0.1)
    async with (
        faulty_backend(script) as backend,
        gate_to(backend.url, pace=pace) as gate,
        client_of(gate.port) as client,
    ):
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
        await eventually(lambda: backend.open == 0)
    assert answer.status == 504
    assert b"VLLM_ADMISSION_MAX_STREAM_SECONDS" in answer.body
