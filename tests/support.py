"""What several tests need: a running server, and the demo's pieces."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

import httpx
import uvicorn
from anyio import to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp

from app.serving import address, listen

# Where the tests run in the background Ctrl-C is ignored, which a process inherits.
_MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from app.cli import main; main()"
)
_P = ParamSpec("_P")
_T = TypeVar("_T")


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Run `app` on a free loopback port, in this event loop; gives its URL."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, date_header=False
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            await task
        await asyncio.sleep(0.005)
    try:
        yield address(listener)
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls `app` without a socket, its lifespan running."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gate") as client:
            yield client


@contextmanager
def start_command(
    *argv: str, ending: signal.Signals = signal.SIGTERM, env: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """Run `vllm-admission ARGV` until the block ends; gives the URLs that it announces."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, *argv],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert process.stderr is not None
    written = process.stderr
    try:
        expected = 2 if argv[0] == "demo" or "--tls-port" in argv else 1
        urls: dict[str, str] = {}
        while len(urls) < expected:
            line = process.stderr.readline()
            assert line, f"it ended with {process.wait()}"
            event = json.loads(line)
            if event["event"] == "listening":
                urls[event["server"]] = event["url"]
        # A pipe that nobody reads would stop the server once its log has filled it.
        reader = threading.Thread(target=written.read)
        reader.start()
        try:
            yield urls
        finally:
            process.send_signal(ending)
            process.wait(timeout=30)
            reader.join()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        written.close()


class ThreadWorkers:
    """Replays in a thread of this process, where a test can reach in."""

    async def run(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        return await to_thread.run_sync(partial(work, *args, **options))

    async def aclose(self) -> None:
        """Hold nothing."""


def replaying_here(app: FastAPI) -> FastAPI:
    """Have `app` replay in this process, which saves each test the start of another."""
    app.state.gates = replace(app.state.gates, replay_workers=ThreadWorkers())
    return app
