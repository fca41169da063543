"""What went between the gate and its backend, byte for byte: a wire tap on a loopback port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.relay.harness import Answer, RawClient


@dataclass
class Tap:
    """Bytes since the last `clear()`, in both directions; made for one request at a time."""

    url: str = ""
    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    def clear(self) -> None:
        self.sent.clear()
        self.received.clear()

    async def answer(self, *, bodiless: bool) -> Answer | None:
        """Read what the backend answered; None if it was not asked."""
        if not self.received:
            return None
        reader = asyncio.StreamReader(limit=2**26)
        reader.feed_data(bytes(self.received))
        reader.feed_eof()
        client = RawClient(reader, _NoWriter())
        head = await client.head()
        return await client.rest(head, bodiless=bodiless or head.status in {204, 304})

    def request(self) -> tuple[str, bytes]:
        """Give the request line, and the body, of what the backend was asked."""
        head, _, body = bytes(self.sent).partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        chunked = any(f.lower() == "transfer-encoding: chunked" for f in fields)
        return line, _joined(body) if chunked else body


class _NoWriter(asyncio.StreamWriter):
    """Stands where nothing is written."""

    def __init__(self) -> None:
        """Have no transport."""

    def __del__(self) -> None:
        """Close none."""


def _joined(chunks: bytes) -> bytes:
    body = b""
    while True:
        size, _, chunks = chunks.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return body
        body += chunks[:length]
        chunks = chunks[length + 2 :]


@asynccontextmanager
async def tapped(backend: str) -> AsyncIterator[Tap]:
    """Listen in front of `backend`; the tap's URL leads there."""
    address = urlsplit(backend)
    tap = Tap()
    busy: set[asyncio.Task[None]] = set()

    async def copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(2**16):
                kept += data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(address.hostname, address.port)
        for task in (
            asyncio.create_task(copy(reader, outer, tap.sent)),
            asyncio.create_task(copy(inner, writer, tap.received)),
        ):
            busy.add(task)
            task.add_done_callback(busy.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    tap.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in list(busy):
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
