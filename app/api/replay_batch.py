"""POST /replay/batch: JSON lines in, JSON lines out, both as streams.

Answers are sent while the body still comes. A client that sends its whole body before it reads
an answer is served too, as long as the answers that wait for it fit in memory set aside.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

import anyio
import structlog
from anyio import to_thread
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.problems import problem_responses
from app.api.replay_workers import WorkerDied, answer_lines
from app.api.state import Gates, gates_of
from app.batch import Line, LineCutter, failure, identity_of
from app.decompression import Inflater
from app.errors import AdmissionError
from app.replaying import NDJSON

router = APIRouter(tags=["replay gate"])

# Answers that wait for a client that does not read yet.
_WAITING_BYTES: Final = 16 * 1024 * 1024
# Parts of the body read ahead, which is also how a disconnect is noticed during the work.
_PARTS_AHEAD: Final = 16
# Small lines are handled several at a time: to reach another process costs as much as one.
_LINES_AT_ONCE: Final = 32
_BYTES_AT_ONCE: Final = 64 * 1024
_STALLED_SECONDS: Final = 300

_log = structlog.get_logger("vllm_admission.replay")

_REQUEST_BODY: Final = {
    "required": True,
    "description": "A case a line. Content-Encoding may be gzip, deflate or zstd.",
    "content": {NDJSON: {"schema": {"$ref": "#/components/schemas/ReplayCase"}}},
}


@router.post(
    "/replay/batch",
    summary="Replay many responses, a JSON line each, as a stream",
    openapi_extra={"requestBody": _REQUEST_BODY},
    response_class=Response,
    responses={
        200: {
            "description": "A report a line, in order. A line that cannot be used is answered "
            "with `{id, line, error}`.",
            "content": {NDJSON: {"schema": {"$ref": "#/components/schemas/ReplayBatchLine"}}},
        },
        **problem_responses(415),
    },
)
async def replay_lines(
    request: Request,
    detail: Annotated[
        Literal["rows"] | None, Query(description="Write each case's rows after its report.")
    ] = None,
) -> Response:
    """Replay a case a line; blank lines are skipped, and memory is that of the longest line."""
    gates = gates_of(request)
    inflater = Inflater(request.headers.get("content-encoding"))
    return BatchResponse(gates, inflater, request.scope.get("request_id"), rows=detail == "rows")


class BatchResponse(Response):
    """Reads the body while it sends the answer, which starlette's own responses do not."""

    media_type = NDJSON

    def __init__(
        self, gates: Gates, inflater: Inflater, request_id: str | None, *, rows: bool
    ) -> None:
        """Make an answer that is not begun before it is called."""
        super().__init__()
        del self.headers["content-length"]
        # nginx would hold lines back until its buffer is full.
        self.headers["x-accel-buffering"] = "no"
        self._gates = gates
        self._inflater = inflater
        self._waiting = Outbox(_WAITING_BYTES)
        self._limit = gates.settings.max_replay_line_bytes
        self._request_id = request_id
        self._scope = anyio.CancelScope()

        self._rows = rows
        # As many groups of lines at a time as there are workers, their answers in order.
        self._places = anyio.Semaphore(gates.settings.replay_workers)
        self._begun, self._answers = anyio.create_memory_object_stream[asyncio.Task[bytes]](
            gates.settings.replay_workers
        )

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Answer; a disconnect ends the work at the line it is at."""
        into, parts = anyio.create_memory_object_stream[bytes](_PARTS_AHEAD)
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._receive, receive, into)
            group.start_soon(self._send, send)
            group.start_soon(self._collect)
            async with parts, self._begun:
                await self._work(parts)

    async def _receive(self, receive: Receive, into: MemoryObjectSendStream[bytes]) -> None:
        """Read ahead to the end of the body, then wait for the client to leave."""
        more = True
        async with into:
            while more and (message := await receive())["type"] == "http.request":
                if part := message.get("body", b""):
                    await into.send(part)
                more = message.get("more_body", False)
        while not more and message["type"] == "http.request":
            message = await receive()
        self._scope.cancel()

    async def _send(self, send: Send) -> None:
        # Not before there is something to say: a client may wait for `100 Continue`.
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        started = False
        with suppress(OSError):
            async for part in self._waiting:
                if not started:
                    await send(start)
                    started = True
                await send({"type": "http.response.body", "body": part, "more_body": True})
            if not started:
                await send(start)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._scope.cancel()

    async def _work(self, parts: MemoryObjectReceiveStream[bytes]) -> None:
        cutter = LineCutter(self._limit)
        try:
            async for part in parts:
                pieces = self._inflater.feed(part)
                while (piece := await self._next(pieces)) is not None:
                    await self._answer(cutter.feed(piece))
            self._inflater.finish()
        except AdmissionError as error:
            await self._places.acquire()
            await self._begun.send(asyncio.create_task(_said(failure(cutter.number, error))))
        else:
            await self._answer(cutter.finish())

    async def _next(self, pieces: Iterator[bytes]) -> bytes | None:
        if self._inflater.identity:
            return next(pieces, None)
        return await to_thread.run_sync(next, pieces, None)

    async def _answer(self, lines: Iterator[Line]) -> None:
        for group in _grouped(lines):
            await self._places.acquire()
            await self._begun.send(asyncio.create_task(self._handle(group)))

    async def _collect(self) -> None:
        """Put answers into the outbox, in order; end what is begun when the client leaves."""
        working: asyncio.Task[bytes] | None = None
        try:
            async for working in self._answers:
                text = await working
                self._places.release()
                await self._put(text)
            self._waiting.close()
        finally:
            begun = [] if working is None else [working]
            with suppress(anyio.WouldBlock, anyio.EndOfStream):
                while True:
                    begun.append(self._answers.receive_nowait())
            self._answers.close()
            for task in begun:
                task.cancel()

    async def _handle(self, lines: Sequence[Line]) -> bytes:
        """Have lines answered in another process, and count what came of them."""
        try:
            answered = await self._gates.replay_workers.run(
                answer_lines, lines, limit=self._limit, rows=self._rows
            )
        except WorkerDied as error:
            return b"".join(failure(line.number, error, identity_of(line)) for line in lines)
        metrics = self._gates.metrics
        for seconds in answered.seconds:
            metrics.duration.labels("replay").observe(seconds)
        for report in answered.reports:
            metrics.counted(report.vllm_version, report.verdict, report.rows)
        for number, trace in answered.crashes:
            _log.error("replay crashed", line=number, request_id=self._request_id, trace=trace)
        return answered.text

    async def _put(self, text: bytes) -> None:
        with anyio.move_on_after(_STALLED_SECONDS):
            await self._waiting.put(text)
            return
        _log.warning("client reads no answers and is disconnected", request_id=self._request_id)
        self._scope.cancel()
        await checkpoint()


class Outbox:
    """Answers on their way to the client: a queue bounded by bytes."""

    def __init__(self, limit: int) -> None:
        """Hold `limit` bytes, or one answer that is larger."""
        self._limit = limit
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._changed = anyio.Event()

    async def put(self, part: bytes) -> None:
        """Add an answer, once there is room."""
        while self._size and self._size + len(part) > self._limit:
            await self._changed.wait()
        self._parts.append(part)
        self._size += len(part)
        self._wake()

    def close(self) -> None:
        """Say that no more answers come."""
        self._closed = True
        self._wake()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Give the answers, several small ones as one part."""
        while self._parts or not self._closed:
            if self._parts:
                part = b"".join(self._parts)
                self._parts.clear()
                yield part
                self._size -= len(part)
                self._wake()
            else:
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


async def _said(text: bytes) -> bytes:
    return text


def _grouped(lines: Iterator[Line]) -> Iterator[list[Line]]:
    group: list[Line] = []
    size = 0
    for line in lines:
        group.append(line)
        size += len(line.data)
        if len(group) == _LINES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group
