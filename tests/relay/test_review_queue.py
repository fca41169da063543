"""Who waits for a place and leaves must not keep it from those who stay."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from app.relay.capacity import CapacityLimits
from tests.relay.faulty import Peer, Seen, faulty_backend
from tests.relay.harness import client_of, eventually, gate_to


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [None, b"{}"])
async def test_a_client_that_leaves_the_queue_makes_room_in_it(body: bytes | None) -> None:
    release = asyncio.Event()

    async def script(_: Seen, peer: Peer) -> None:
        await release.wait()
        await peer.answer(b"done")

    limits = CapacityLimits(in_flight=1, queue=1, wait=60)
    async with (
        faulty_backend(script) as backend,
        gate_to(backend.url, capacity=limits) as gate,
        AsyncExitStack() as clients,
    ):
        first, leaver, stayer = [
            await clients.enter_async_context(client_of(gate.port)) for _ in range(3)
        ]
        await first.send("GET", "/x")
        await eventually(lambda: backend.seen)
        await leaver.send("POST", "/x", body=body)
        await eventually(lambda: gate.metric("proxy_queue_depth") == 1)
        leaver.leave()
        await eventually(lambda: gate.metric("proxy_queue_depth") == 0)
        await stayer.send("GET", "/y")
        await eventually(lambda: gate.metric("proxy_queue_depth") == 1)
        release.set()
        answers = [await client.rest(await client.head()) for client in (first, stayer)]
        assert gate.metric("proxy_client_disconnects_total", phase="queue") == 1
    assert [answer.body for answer in answers] == [b"done", b"done"]
    assert [seen.line for seen in backend.seen] == ["GET /x HTTP/1.1", "GET /y HTTP/1.1"]
