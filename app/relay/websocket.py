"""WebSockets: messages pass both ways as they come, and whoever leaves takes the other along."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import httpx
import structlog
from starlette.types import Message, Receive, Scope, Send

from app.errors import AdmissionError, NotReady
from app.relay.exchange import ABORT
from app.relay.faults import ClientLeft, Draining, fault_of
from app.relay.fleet import Upstream
from app.relay.handshake import BackendSocket, HandshakeDenied, SocketOptions
from app.relay.headers import (
    RawHeaders,
    forwarded_request_headers,
    forwarded_response_headers,
    header,
    request_id_of,
    target_of,
)
from app.relay.response import retry_after

if TYPE_CHECKING:
    from app.relay.relay import Relay

_log = structlog.get_logger("vllm_admission.relay")

ROUTE: Final = "websocket"
_TOO_SLOW: Final = "client-too-slow"
_DENIAL: Final = "websocket.http.response"
# RFC 6455 section 7.4.1 and the IANA registry.
_NORMAL, _GOING_AWAY, _NO_STATUS, _ABNORMAL = 1000, 1001, 1005, 1006
_TOO_BIG, _RESTART, _BAD_GATEWAY = 1009, 1012, 1014
_MOST_REASON_BYTES: Final = 123
_HANDSHAKE: Final = frozenset(
    {
        b"sec-websocket-accept",
        b"sec-websocket-extensions",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
    }
)


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """What a WebSocket may cost.

    Attributes:
        max_message_bytes: longest message taken from the backend.
        write_timeout: seconds that a client may leave unread what waits for it.
        close_seconds: that a closing handshake with the backend may take.
    """

    max_message_bytes: int = 16 * 2**20
    write_timeout: float = 300.0
    close_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class _Close:
    """How one side ended; `outcome` is for the metrics."""

    code: int
    reason: str
    outcome: str


class RelayedSocket:
    """One WebSocket of a client, and the one to the backend that belongs to it."""

    def __init__(self, relay: Relay, scope: Scope, receive: Receive, send: Send) -> None:
        """Take on one WebSocket."""
        self._relay = relay
        self._scope = scope
        self._receive = receive
        self._send = send
        self._stopped: asyncio.Future[AdmissionError | ClientLeft] | None = None
        self._abort: Callable[[], None] | None = (scope.get("extensions") or {}).get(ABORT)
        self._request_id = request_id_of(header(scope["headers"], b"x-request-id"))

    def stop(self, reason: AdmissionError | ClientLeft) -> None:
        """End it from outside; the client is told by the close code."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(reason)

    async def run(self) -> None:
        """Open both, pass messages until one side leaves, and count how it ended."""
        metrics = self._relay.metrics
        outcome = "aborted"
        self._stopped = asyncio.get_running_loop().create_future()
        try:
            outcome = await self._run()
        except HandshakeDenied as denied:
            outcome = f"{denied.status // 100}xx"
            await self._deny(denied.status, forwarded_response_headers(denied.headers), denied.body)
        except ClientLeft:
            outcome = "client-left"
            metrics.left("waiting")
        except AdmissionError as error:
            outcome = error.slug
            await self._refuse(error)
        finally:
            metrics.ended(ROUTE, outcome)

    async def _run(self) -> str:
        backend = self._relay.backend
        if (await self._receive())["type"] != "websocket.connect":
            raise ClientLeft
        if backend is None:
            raise NotReady("no backend to relay to: set VLLM_ADMISSION_BACKEND_URL")
        self._relay.refuse_while_draining()
        limits = self._relay.socket_limits
        options = SocketOptions(
            tuple(self._scope.get("subprotocols", ())),
            limits.max_message_bytes,
            limits.close_seconds,
        )
        await self._relay.take_place()
        try:
            return await self._relayed(backend, options)
        finally:
            self._relay.give_place_back()

    async def _relayed(self, backend: Upstream, options: SocketOptions) -> str:
        fields = _without_handshake(forwarded_request_headers(self._scope["headers"]))
        fields.append((b"x-request-id", self._request_id.encode()))
        opening = asyncio.ensure_future(
            backend.open_socket(target_of(self._scope), fields, options)
        )
        first = asyncio.ensure_future(self._receive())
        try:
            upstream = await self._opened(opening, first)
        except BaseException:
            await _ended(opening, first)
            raise
        try:
            with self._relay.tracked(self), self._relay.metrics.sockets.track_inprogress():
                return await self._pass_messages(upstream, first)
        finally:
            first.cancel()
            upstream.abort()

    async def _opened(
        self, opening: asyncio.Future[BackendSocket], first: asyncio.Future[Message]
    ) -> BackendSocket:
        """Wait for the backend's answer, unless the client leaves before it comes."""
        await _any_of(opening, first)
        if first.done() and not opening.done():
            raise ClientLeft
        try:
            return opening.result()
        except httpx.TransportError as error:
            raise fault_of(error) from error

    async def _pass_messages(self, upstream: BackendSocket, first: asyncio.Future[Message]) -> str:
        await self._accept(upstream)
        assert self._stopped is not None  # noqa: S101 - run() has made it
        up = asyncio.ensure_future(self._to_backend(upstream, first))
        down = asyncio.ensure_future(self._to_client(upstream))
        try:
            await _any_of(up, down, self._stopped)
            if self._stopped.done():
                await self._close_both(upstream, self._stopped.result())
                return "draining"
            if up.done():
                end = up.result()
                await _ended(down)
                with suppress(aiohttp.ClientError, ConnectionError):
                    await upstream.close(code=_sendable(end.code), message=_reason(end.reason))
                return end.outcome
            end = down.result()
            if end.outcome == _TOO_SLOW and self._abort is not None:
                self._abort()
            else:
                await self._close_client(_sendable(end.code), end.reason)
            return end.outcome
        finally:
            await _ended(up, down)

    async def _accept(self, upstream: BackendSocket) -> None:
        fields = _without_handshake(forwarded_response_headers(upstream.raw_headers))
        if header(fields, b"x-request-id") is None:
            fields.append((b"x-request-id", self._request_id.encode()))
        await self._send(
            {"type": "websocket.accept", "subprotocol": upstream.protocol, "headers": fields}
        )

    async def _to_backend(self, upstream: BackendSocket, first: asyncio.Future[Message]) -> _Close:
        """Pass the client's messages on until it leaves."""
        message = await first
        while message["type"] == "websocket.receive":
            try:
                text = message.get("text")
                if text is not None:
                    await upstream.send_str(text)
                else:
                    await upstream.send_bytes(message.get("bytes") or b"")
            except (aiohttp.ClientError, ConnectionError):
                return await _forever()  # the other direction tells how the backend ended
            message = await self._receive()
        self._relay.metrics.left("response")
        return _Close(message.get("code") or _NO_STATUS, message.get("reason") or "", "client-left")

    async def _to_client(self, upstream: BackendSocket) -> _Close:
        """Pass the backend's messages on until it ends, or the client takes none any more."""
        limit = self._relay.socket_limits.write_timeout
        while True:
            message = await upstream.receive()
            match message.type:
                case aiohttp.WSMsgType.TEXT:
                    event: dict[str, Any] = {"type": "websocket.send", "text": message.data}
                case aiohttp.WSMsgType.BINARY:
                    event = {"type": "websocket.send", "bytes": message.data}
                case aiohttp.WSMsgType.CLOSE:
                    return _Close(message.data or _NO_STATUS, message.extra or "", "closed")
                case _:
                    return _broken(upstream.close_code)
            try:
                async with asyncio.timeout(limit):
                    await self._send(event)
            except TimeoutError:
                return _Close(_GOING_AWAY, "", _TOO_SLOW)
            except OSError:
                return await _forever()  # the other direction tells how the client left

    async def _close_both(
        self, upstream: BackendSocket, reason: AdmissionError | ClientLeft
    ) -> None:
        await self._close_client(_RESTART, str(reason))
        with suppress(aiohttp.ClientError, ConnectionError):
            await upstream.close(code=_GOING_AWAY)

    async def _close_client(self, code: int, reason: str) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._relay.socket_limits.close_seconds):
                await self._send(
                    {
                        "type": "websocket.close",
                        "code": code,
                        "reason": _reason(reason).decode("utf-8", "ignore"),
                    }
                )

    async def _refuse(self, error: AdmissionError) -> None:
        headers = [(b"content-type", b"application/json")]
        if error.status == 503:
            headers.append((b"retry-after", retry_after(error)))
        if isinstance(error, Draining):
            headers.append((b"connection", b"close"))
        await self._deny(error.status, headers, json.dumps(error.vllm_json()).encode())

    async def _deny(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Answer the handshake with something else than 101."""
        with suppress(OSError):
            if _DENIAL not in (self._scope.get("extensions") or {}):
                await self._send({"type": "websocket.close"})
                return
            fields = [field for field in headers if field[0] != b"content-length"]
            fields.append((b"content-length", str(len(body)).encode()))
            if header(fields, b"x-request-id") is None:
                fields.append((b"x-request-id", self._request_id.encode()))
            await self._send({"type": f"{_DENIAL}.start", "status": status, "headers": fields})
            await self._send({"type": f"{_DENIAL}.body", "body": body})


def _broken(code: int | None) -> _Close:
    """Say how a backend ended that did not close."""
    if code == _TOO_BIG:
        return _Close(_TOO_BIG, "the backend's message is too long", "backend-garbled")
    return _Close(_BAD_GATEWAY, "the backend closed the connection", "backend-disconnected")


def _sendable(code: int) -> int:
    """Give the code that may stand in a close frame for one that is only reported."""
    if code in (_NO_STATUS, _NORMAL):
        return _NORMAL
    if code == _ABNORMAL or not 1000 <= code < 5000 or code in (1004, 1015):
        return _GOING_AWAY
    return code


def _reason(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:_MOST_REASON_BYTES]


def _without_handshake(fields: RawHeaders) -> RawHeaders:
    return [field for field in fields if field[0] not in _HANDSHAKE]


async def _forever() -> _Close:
    never: asyncio.Future[_Close] = asyncio.get_running_loop().create_future()
    return await never


async def _any_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _ended(*futures: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and take what came of it; a socket that opened is closed."""
    for future in futures:
        future.cancel()
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(outcome, BackendSocket):
            outcome.abort()
