"""A backend that does exactly what a test says, on a real socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One request as it arrived."""

    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    @property
    def fields(self) -> list[tuple[str, str]]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [(n.lower(), v) for n, _, v in (line.partition(": ") for line in lines if line)]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]


@dataclass
class Peer:
    """The backend's end of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, body: bytes, *fields: str, status: str = "200 OK", length: bool = True
    ) -> None:
        lines = [f"HTTP/1.1 {status}", *fields]
        if length:
            lines.append(f"content-length: {len(body)}")
        await self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    async def start_stream(self, *fields: str) -> None:
        await self.answer(
            b"", *(fields or (EVENT_STREAM,)), "transfer-encoding: chunked", length=False
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

    async def until_closed(self) -> None:
        """Return when the other side has closed."""
        while await self.reader.read(65536):
            pass


EVENT_STREAM = "content-type: text/event-stream; charset=utf-8"
Script = Callable[[Seen, Peer], Awaitable[None]]


def stream_that_waits(go_on: asyncio.Event) -> Script:
    """Stream one event, and the end once `go_on` is set; anything else is answered at once."""

    async def script(request: Seen, peer: Peer) -> None:
        if "completions" not in request.line:
            await peer.answer(b"served")
            return
        await peer.start_stream()
        await peer.chunk(b"data: 1\n\n")
        await go_on.wait()
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()

    return script


@dataclass
class FaultyBackend:
    """Answers each request by `script`; remembers what it saw."""

    script: Script
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    open: int = 0
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self._serve(Peer(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _serve(self, peer: Peer) -> None:
        while True:
            head = await peer.reader.readuntil(b"\r\n\r\n")
            request = Seen(head[:-4], await _body(head, peer.reader))
            self.seen.append(request)
            await self.script(request, peer)
            if peer.writer.is_closing():
                return

    async def hang(self, peer: Peer) -> None:
        """Answer nothing more; note when the relay gives up."""
        await peer.until_closed()
        self.aborted.set()
        peer.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    fields = head.lower()
    if b"\r\ntransfer-encoding: chunked" in fields:
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return body
    _, _, rest = fields.partition(b"\r\ncontent-length: ")
    return await reader.readexactly(int(rest.split(b"\r\n")[0])) if rest else b""


@asynccontextmanager
async def faulty_backend(script: Script) -> AsyncIterator[FaultyBackend]:
    backend = FaultyBackend(script)
    server = await asyncio.start_server(backend.connection, "127.0.0.1", 0, limit=2**20)
    backend.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        server.close()
