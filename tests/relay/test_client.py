"""The client's half alone: what counts as slow, and who reads when."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from app.relay.client import BodyLimits, Client


def _client(*bodies: bytes, limits: BodyLimits) -> Client:
    messages: list[Message] = [
        {"type": "http.request", "body": body, "more_body": body is not bodies[-1]}
        for body in bodies
    ]

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        return await asyncio.Future()

    return Client(receive, limits, None)


@pytest.mark.asyncio
async def test_only_waiting_for_the_client_counts_as_its_slowness() -> None:
    client = _client(b"one", b"two", b"three", limits=BodyLimits(100, grace=0.4, min_rate=1e9))
    parts = client.parts()
    watching = asyncio.create_task(client.watch())
    received = []
    async for part in parts:
        received.append(part)
        await asyncio.sleep(0.3)
    watching.cancel()
    assert received == [b"one", b"two", b"three"]


@pytest.mark.asyncio
async def test_a_body_nobody_reads_any_more_is_let_go_so_that_departures_are_seen() -> None:
    messages: list[Message] = [
        *({"type": "http.request", "body": b"x", "more_body": True} for _ in range(5)),
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        await asyncio.sleep(0)
        return messages.pop(0)

    client = Client(receive, BodyLimits(100), None)
    parts = client.parts()
    watching = asyncio.create_task(client.watch())
    assert await anext(parts) == b"x"
    await parts.aclose()
    async with asyncio.timeout(2):
        await watching


@pytest.mark.asyncio
async def test_an_empty_body_is_empty() -> None:
    assert await _client(b"", limits=BodyLimits(1)).read() == b""
