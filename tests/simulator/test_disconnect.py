"""Clients that leave, over a real socket: the engine stops working for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.simulator.engine import Engine
from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings
from tests.simulator.client import generation
from tests.support import serving

PATHS = pytest.mark.parametrize(
    "path", ["/inference/v1/generate", "/v1/completions", "/v1/chat/completions"]
)


@asynccontextmanager
async def _server(**settings: Any) -> AsyncIterator[tuple[Engine, int]]:
    app = create_simulator(SimulatorSettings(**{"token_delay": 0.002, **settings}))
    async with serving(app) as url:
        port = urlsplit(url).port
        assert port is not None
        yield app.state.engine, port


def _request(path: str, *, stream: bool, max_tokens: int = 2000, **sampling: Any) -> bytes:
    body = {
        **generation(max_tokens=max_tokens, **sampling),
        "prompt": "hello",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": stream,
        "top_k": 5,
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come about in 5 s")


@PATHS
@pytest.mark.asyncio
async def test_leaving_a_stream_aborts_it(path: str) -> None:
    async with _server() as (engine, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request(path, stream=True))
        await reader.readuntil(b"data: ")
        assert engine.running == 1
        writer.close()

        await _until(lambda: engine.finished["abort"] == 1)

        assert engine.running == 0
        assert engine.generated_tokens < 2000


@PATHS
@pytest.mark.asyncio
async def test_leaving_before_the_answer_aborts_the_work(path: str) -> None:
    async with _server() as (engine, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request(path, stream=False))
        await _until(lambda: engine.running == 1)
        writer.close()

        await _until(lambda: engine.finished["abort"] == 1)

        assert engine.running == 0


@pytest.mark.asyncio
async def test_leaving_while_the_server_waits_to_send_aborts_it() -> None:
    async with _server(token_delay=0.0, max_model_len=100_000) as (engine, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        # Masks of the whole vocabulary fill the socket's buffers soon.
        path = "/inference/v1/generate"
        writer.write(_request(path, stream=True, max_tokens=50_000, top_k=1024))
        await reader.readuntil(b"data: ")

        async def stalled() -> None:
            before = -1
            while before != engine.generated_tokens:
                before = engine.generated_tokens
                await asyncio.sleep(0.2)

        await asyncio.wait_for(stalled(), 60)
        writer.transport.abort()

        await _until(lambda: engine.finished["abort"] == 1)


@pytest.mark.asyncio
async def test_many_clients_that_leave_leave_nothing_behind() -> None:
    async with _server(max_num_seqs=4) as (engine, port):

        async def visit(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_request("/inference/v1/generate", stream=number % 2 == 0))
            if number % 3 == 0:
                await asyncio.sleep(0.01)
            writer.close()

        await asyncio.gather(*(visit(number) for number in range(40)))
        await asyncio.sleep(0.05)
        await _until(lambda: engine.running == 0 and engine.waiting == 0)


@pytest.mark.asyncio
async def test_each_token_is_its_own_event_sent_at_once() -> None:
    async with _server(token_delay=0.05) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request("/inference/v1/generate", stream=True, max_tokens=4))
        await reader.readuntil(b"\r\n\r\n")
        arrivals = []
        while b"[DONE]" not in (line := await reader.readuntil(b"\n\n")):
            assert line.count(b"data: ") == 1
            arrivals.append(asyncio.get_running_loop().time())
        writer.close()

    assert len(arrivals) == 4
    assert all(later - earlier > 0.02 for earlier, later in pairwise(arrivals))
