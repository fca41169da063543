"""The end of the process: readiness first, then the streams, then the rest. A real one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.relay.faulty import FaultyBackend, Peer, Seen, faulty_backend, stream_that_waits
from tests.relay.harness import Answer, RawClient, client_of, eventually

REQUEST = ("POST", "/v1/completions")


@asynccontextmanager
async def _service(
    backend: FaultyBackend, **settings: object
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The service as a process of its own, and its URL."""
    given = {"backend_url": backend.url, "drift_interval": 0, **settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from app.cli import main; main()",
        "serve",
        "--port",
        "0",
        env={**os.environ, **{f"VLLM_ADMISSION_{k.upper()}": str(v) for k, v in given.items()}},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        while (event := json.loads(await process.stderr.readline()))["event"] != "listening":
            pass
        yield process, event["url"]
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _until(client: RawClient, target: str, status: int) -> Answer:
    """Ask until the answer has this status."""
    async with asyncio.timeout(10):
        while True:
            answer = await client.ask("GET", target)
            if answer.status == status:
                return answer
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_after_sigterm_streams_end_and_new_requests_are_sent_elsewhere() -> None:
    go_on = asyncio.Event()
    async with (
        faulty_backend(stream_that_waits(go_on)) as backend,
        _service(backend, drain_delay=1.5) as (process, url),
    ):
        port = int(url.rsplit(":", 1)[1])
        async with client_of(port) as client, client_of(port) as late:
            await client.send(*REQUEST, body=b"{}")
            head = await client.head()
            assert await client.part() == b"data: 1\n\n"
            process.send_signal(signal.SIGTERM)
            unready = await _until(late, "/readyz", 503)
            served = await late.ask("GET", "/v1/models")
            refused = await _until(late, "/v1/models", 503)
            async with client_of(port) as newcomer:
                own = await newcomer.ask("GET", "/livez")
            go_on.set()
            stream = await client.rest(head)
        await asyncio.wait_for(process.wait(), 10)
    assert b"[-]not-draining: the server is about to end" in unready.body
    assert served.body == b"served"
    assert stream.complete
    assert stream.body == b"data: [DONE]\n\n"
    assert (refused.status, refused.first("connection")) == (503, "close")
    assert b'"vllm_admission": "draining"' in refused.body
    assert own.status == 200


@pytest.mark.asyncio
async def test_a_stream_that_outlasts_the_drain_ends_with_one_error_event() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        if "completions" in request.line:
            await peer.start_stream()
            await peer.chunk(b"data: 1\n\n")
        await backend.hang(peer)

    async with (
        faulty_backend(script) as backend,
        _service(backend, drain_seconds=0.2) as (process, url),
    ):
        port = int(url.rsplit(":", 1)[1])
        async with client_of(port) as client, client_of(port) as waiting:
            await client.send(*REQUEST, body=b"{}")
            head = await client.head()
            await waiting.send("POST", "/v1/embeddings", body=b"{}")
            await eventually(lambda: len(backend.seen) == 2)
            process.send_signal(signal.SIGTERM)
            stream = await asyncio.wait_for(client.rest(head), 10)
            unary = await asyncio.wait_for(waiting.head(), 10)
        await asyncio.wait_for(process.wait(), 10)
        await asyncio.wait_for(backend.aborted.wait(), 5)
    first, error, done, end = stream.body.split(b"\n\n")
    assert (first, done, end) == (b"data: 1", b"data: [DONE]", b"")
    body = json.loads(error.removeprefix(b"data: "))["error"]
    assert (body["code"], body["vllm_admission"]) == (503, "draining")
    assert (unary.status, unary.first("connection")) == (503, "close")
