"""A relay on a real socket, and clients that see every byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from app.relay.capacity import CapacityLimits
from app.relay.client import BodyLimits
from app.relay.fleet import Upstream
from app.relay.http_protocol import HeaderLimits, guarded_http
from app.relay.metrics import RelayMetrics
from app.relay.relay import Examiner, Pace, Relay
from app.relay.upstream import Backend
from app.relay.websocket import SocketLimits
from app.request_rules.examination import Examination
from tests.relay.faulty import FaultyBackend, Script, faulty_backend


class NoRules:
    """Examines nothing."""

    def route_of(self, method: str, path: str) -> str | None:
        return None

    def examine(self, route: str, body: bytes) -> Examination:
        raise AssertionError("nothing is to be examined")


@dataclass
class Gate:
    """A relay under test."""

    relay: Relay
    registry: CollectorRegistry
    port: int = 0

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"vllm_admission_{name}", labels) or 0.0


@asynccontextmanager
async def gate_to(
    url: str,
    *,
    examiner: Examiner | None = None,
    limits: BodyLimits | None = None,
    connect_timeout: float = 2.0,
    idle_timeout: float = 5.0,
    capacity: CapacityLimits | None = None,
    pace: Pace | None = None,
    sockets: SocketLimits | None = None,
) -> AsyncIterator[Gate]:
    backend = Backend(url, connect_timeout=connect_timeout, idle_timeout=idle_timeout)
    async with gate_of(
        backend, examiner=examiner, limits=limits, capacity=capacity, pace=pace, sockets=sockets
    ) as gate:
        yield gate


@asynccontextmanager
async def gate_of(
    backend: Upstream,
    *,
    examiner: Examiner | None = None,
    limits: BodyLimits | None = None,
    capacity: CapacityLimits | None = None,
    pace: Pace | None = None,
    sockets: SocketLimits | None = None,
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[Gate]:
    """A relay to `backend`, which it closes."""
    registry = registry or CollectorRegistry()
    relay = Relay(
        backend,
        examiner or NoRules(),
        RelayMetrics(registry),
        limits or BodyLimits(2**20),
        capacity=capacity,
        pace=pace,
        sockets=sockets,
    )
    try:
        async with listening(relay) as port:
            yield Gate(relay, registry, port)
    finally:
        await backend.aclose()


@asynccontextmanager
async def scene(
    script: Script,
    *,
    examiner: Examiner | None = None,
    limits: BodyLimits | None = None,
    idle_timeout: float = 5.0,
) -> AsyncIterator[tuple[FaultyBackend, Gate, RawClient]]:
    """A backend, a relay in front of it, and a client of that."""
    async with (
        faulty_backend(script) as backend,
        gate_to(backend.url, examiner=examiner, limits=limits, idle_timeout=idle_timeout) as gate,
        client_of(gate.port) as client,
    ):
        yield backend, gate, client


@asynccontextmanager
async def listening(
    app: ASGIApp, header: HeaderLimits | None = None, ws_max_size: int = 2**20
) -> AsyncIterator[int]:
    config = uvicorn.Config(
        app,
        http=guarded_http(header or HeaderLimits()),
        ws_max_size=ws_max_size,
        host="127.0.0.1",
        port=0,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


@dataclass
class Answer:
    """One response, as the bytes on the wire say."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes
    complete: bool

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def first(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)


class RawClient:
    """An HTTP client that hides nothing: no pool, no cookies, no default fields."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, method: str, target: str, *fields: str, body: bytes | None = None) -> None:
        lines = [f"{method} {target} HTTP/1.1", "host: gate.example", *fields]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        self.writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))
        await self.writer.drain()

    async def head(self) -> Answer:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = raw[:-4].decode("latin-1").split("\r\n")
        fields = [(n.lower(), v) for n, _, v in (line.partition(": ") for line in lines)]
        found = re.match(r"HTTP/1.1 (\d+)", status)
        assert found is not None
        return Answer(int(found[1]), fields, b"", complete=False)

    async def part(self) -> bytes:
        """Read one chunk of a chunked body; empty at its end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def rest(self, answer: Answer, *, bodiless: bool = False) -> Answer:
        """Read the body to its end, or to where the connection was cut."""
        length = answer.first("content-length")
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if bodiless:
                answer.complete = True
            elif length is not None:
                answer.body = await self.reader.readexactly(int(length))
                answer.complete = True
            else:
                while part := await self.part():
                    answer.body += part
                answer.complete = True
        return answer

    async def ask(
        self, method: str, target: str, *fields: str, body: bytes | None = None
    ) -> Answer:
        await self.send(method, target, *fields, body=body)
        return await self.rest(await self.head(), bodiless=method == "HEAD")

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def client_of(port: int) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def eventually(truth: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until `truth()` holds."""
    async with asyncio.timeout(seconds):
        while True:
            if truth():
                return
            await asyncio.sleep(0.005)
