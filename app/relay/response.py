"""The answering half: the backend's response, or an error in vLLM's shape, to one client."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

import httpx
from starlette.types import Send

from app.errors import AdmissionError
from app.relay.faults import BackendFault, Draining, Unavailable, anthropic_json, fault_of
from app.relay.headers import RawHeaders, forwarded_response_headers, with_own_location
from app.telemetry.exchange import Exchange, Party

ANTHROPIC_ROUTES = ("/v1/messages",)
RETRY_AFTER_SECONDS = b"5"
INTERNAL = "an internal error; the log has the details under this request id"
_LEAVES_BODY_UNREAD = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_BODILESS = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class Observer(Protocol):
    """Whoever looks on while a body passes."""

    def passed(self, data: bytes) -> None:
        """See a part of the body."""

    async def ending(self) -> bytes:
        """See the end; what this gives is sent last on an event stream, as it stands."""


class Responder:
    """Writes one response.

    `extra` fields are added unless the backend's response has them. `started` says whether the
    header, and `complete` whether everything was handed to the server. While `sending` the
    client has not taken enough of what it was sent; `sends` counts.
    """

    def __init__(self, send: Send, path: str, record: Exchange, origin: bytes = b"") -> None:
        """Answer a request for `path`; `record` is told whom a wait is for.

        `origin` is how the client calls us, scheme and authority; redirects lead there.
        """
        self._send = send
        self._record = record
        self._origin = origin
        self._anthropic = path.startswith(ANTHROPIC_ROUTES)
        self._events: _Events | None = None
        self.extra: RawHeaders = []
        self.started = False
        self.complete = False
        self.sending = False
        self.sends = 0

    async def start(self, response: httpx.Response) -> None:
        """Send the header of the backend's response."""
        headers = forwarded_response_headers(response.headers.raw)
        if response.status_code in _BODILESS:
            # It would be the length of what is not sent, and our server counts.
            headers = [field for field in headers if field[0] != b"content-length"]
        if 300 <= response.status_code < 400:
            backend = str(response.request.url).rstrip("/").encode()
            headers = with_own_location(headers, backend, self._origin)
        present = {name for name, _ in headers}
        headers += [field for field in self.extra if field[0] not in present]
        await self._start(response.status_code, headers)

    async def body_of(
        self,
        response: httpx.Response,
        parts: AsyncIterator[bytes] | None = None,
        observer: Observer | None = None,
    ) -> BackendFault | None:
        """Pass the body on, each read at once, no faster than the client takes it.

        `parts` is the body where somebody has begun to read it.

        Gives the fault if the backend breaks off in the middle. An event stream then ends with
        an error event. Any other body is left unfinished, which makes the server cut the
        connection: a shortened body must not look complete.
        """
        length = response.headers.get("content-length", "")
        missing = int(length) if length.isdigit() else -1
        if missing < 0 and _is_plain_event_stream(response):
            self._events = _Events()
        events = self._events
        try:
            async for data in parts if parts is not None else response.aiter_raw():
                if observer is not None:
                    observer.passed(data)
                missing -= len(data)
                await self._body(data, last=missing == 0)
                if events is not None:
                    events.passed(data)
        except httpx.TransportError as error:
            fault = fault_of(error)
            await self.break_off(fault)
            return fault
        closing = await observer.ending() if observer is not None else b""
        if not self.complete:
            last = events.gap() + closing if events is not None and closing else b""
            await self._body(last, last=True)
        return None

    async def break_off(self, error: AdmissionError) -> None:
        """End a body that is begun: an event stream with an error event, others not at all."""
        if self._events is not None and not self.complete:
            await self._body(self._events.closing(self._error(error.vllm_json())), last=True)

    async def fail(
        self, error: AdmissionError, linger: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Answer with an error of ours.

        `linger()` is awaited before the connection is closed under a client that still sends.
        """
        unread = error.status in _LEAVES_BODY_UNREAD
        if unread or isinstance(error, Draining):
            self.extra.append((b"connection", b"close"))
        if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.extra.append((b"retry-after", retry_after(error)))
        await self.json(error.status, error.vllm_json(), linger if unread else None)

    async def json(
        self,
        status: int,
        error: dict[str, Any],
        linger: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Answer with an error object that has vLLM's shape."""
        body = json.dumps(self._error(error)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self.extra,
        ]
        await self._start(status, headers)
        if linger is not None:
            await self._body(body, last=False)
            await linger()
            body = b""
        await self._body(body, last=True)

    def _error(self, error: dict[str, Any]) -> dict[str, Any]:
        return anthropic_json(error) if self._anthropic else error

    async def _start(self, status: int, headers: RawHeaders) -> None:
        self._record.waits_for = Party.CLIENT
        self.started = self.sending = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self.sending = False
        self._record.waits_for = Party.BACKEND

    async def _body(self, data: bytes, *, last: bool) -> None:
        self._record.waits_for = Party.CLIENT
        self.sends += 1
        self.sending = True
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self.sending = False
        self._record.waits_for = Party.BACKEND
        self.complete = last


def retry_after(error: AdmissionError) -> bytes:
    """Give the value of Retry-After for an error that passes, in whole seconds."""
    if isinstance(error, Unavailable):
        return str(max(1, math.ceil(error.retry_after))).encode()
    return RETRY_AFTER_SECONDS


def _is_plain_event_stream(response: httpx.Response) -> bool:
    content_type: str = response.headers.get("content-type", "")
    encoding: str = response.headers.get("content-encoding", "identity")
    return content_type.startswith("text/event-stream") and encoding == "identity"


class _Events:
    """What must be known of an event stream to end it well: its last bytes."""

    def __init__(self) -> None:
        self._tail = b"\n\n"

    def passed(self, data: bytes) -> None:
        self._tail = data[-4:] if len(data) >= 4 else (self._tail + data)[-4:]

    def closing(self, error: dict[str, Any]) -> bytes:
        """End a half-sent event, then say the error as vLLM's streams do."""
        data = json.dumps(error).encode()
        if error.get("type") == "error":
            return self.gap() + b"event: error\ndata: " + data + b"\n\n"
        return self.gap() + b"data: " + data + b"\n\ndata: [DONE]\n\n"

    def gap(self) -> bytes:
        """What ends the event that was being sent, if one was."""
        return b"" if self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) else b"\n\n"
