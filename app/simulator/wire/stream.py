"""Responses that notice a client who leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, suppress
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.simulator.errors import Refusal
from app.simulator.wire.answer import DONE, error_event

_T = TypeVar("_T")


class ClientGone(Exception):
    """The client closed the connection before the answer was ready."""


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T:
    """Wait for `work`, and cancel it when the client leaves.

    The request's body has to be read already.

    Raises:
        ClientGone: the client left first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        with suppress(asyncio.CancelledError, Refusal):
            await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A text/event-stream of ready-made events that always closes its source.

    Starlette's `StreamingResponse` leaves the generator open when the client goes while
    `send` waits; then the engine would go on generating.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str]) -> None:
        self._events = events
        self.status_code = 200
        self.background = None
        self.init_headers()

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002 - the signature is ASGI's
        receive: Receive,
        send: Send,
    ) -> None:
        """Send the events one by one until they end or the client leaves."""
        sender = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sender.cancel()
            gone.cancel()
            await asyncio.gather(sender, gone, return_exceptions=True)
            await self._events.aclose()
        if not sender.cancelled() and (error := sender.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for text in events:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def ending(events: AsyncIterator[str]) -> AsyncGenerator[str]:
    """Turn a refusal into an error event, and end the stream as OpenAI's ends."""
    try:
        async for text in events:
            yield text
    except Refusal as refusal:
        yield error_event(refusal.body())
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    yield DONE
