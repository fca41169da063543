"""The backend's side of a WebSocket: opening it, or hearing in full why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from app.relay.headers import RawHeaders

_MOST_DENIAL_BYTES = 64 * 1024
_SWITCHING_PROTOCOLS = 101


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """How a WebSocket is opened.

    Attributes:
        protocols: subprotocols that the client offers, in its order.
        max_message_bytes: longest message taken from the backend.
        close_seconds: that a closing handshake may take.
    """

    protocols: Sequence[str] = ()
    max_message_bytes: int = 16 * 2**20
    close_seconds: float = 1.0


class HandshakeDenied(Exception):
    """The backend answered with something else than 101."""

    def __init__(self, status: int, headers: RawHeaders, body: bytes) -> None:
        super().__init__(f"the backend answered {status}")
        self.status = status
        self.headers = headers
        self.body = body


class BackendSocket(aiohttp.ClientWebSocketResponse[bool]):
    """An open WebSocket that knows the header it was opened with."""

    handshake: aiohttp.ClientResponse

    def __init__(self, *args: Any, **options: Any) -> None:
        """As aiohttp calls it: reader, writer, protocol, response, and more."""
        super().__init__(*args, **options)
        self.handshake = args[3]
        self.on_abort: Callable[[], None] | None = None

    @property
    def raw_headers(self) -> RawHeaders:
        """The fields of the backend's 101."""
        return list(self.handshake.raw_headers)

    def abort(self) -> None:
        """Close the connection without a closing handshake."""
        self.handshake.close()
        told, self.on_abort = self.on_abort, None
        if told is not None:
            told()


class AnswerToUpgrade(aiohttp.ClientResponse):
    """A response that reads its body when it denies; aiohttp's own error leaves it out."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the header.

        Raises:
            HandshakeDenied: it is no 101.
        """
        await super().start(connection)
        if self.status != _SWITCHING_PROTOCOLS:
            body = await self.content.read(_MOST_DENIAL_BYTES)
            raise HandshakeDenied(self.status, list(self.raw_headers), body)
        return self
