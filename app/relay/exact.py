"""Requests whose field values are not UTF-8: aiohttp would encode those octets anew.

They are rare (a name in Latin-1), so that httpx's own transport is fast enough for them.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import httpx

from app.relay.headers import RawHeaders

_LIMITS: Final = httpx.Limits(max_connections=1, max_keepalive_connections=0)


class ExactSender:
    """Sends every octet as it is."""

    def __init__(self, *, connect_timeout: float, idle_timeout: float) -> None:
        """Take the timeouts of the backend, in seconds."""
        self._timeouts = {"connect": connect_timeout, "read": idle_timeout, "write": idle_timeout}
        self._open: set[httpx.AsyncHTTPTransport] = set()
        self._trust: ssl.SSLContext | None = None

    async def send(
        self,
        method: str,
        url: httpx.URL,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterator[bytes] | None,
        on_close: Callable[[], None],
    ) -> httpx.Response:
        """Send as `Backend.send` does, to `target` at the server of `url`.

        `on_close` is called once, when the response is closed, if there is one.

        Raises:
            httpx.TransportError: see `app.relay.faults.fault_of`.
        """
        if self._trust is None:
            self._trust = ssl.create_default_context()  # as aiohttp has it
        # One for each request: a common one looks at all of its connections for every request.
        transport = httpx.AsyncHTTPTransport(self._trust, limits=_LIMITS, trust_env=False)
        self._open.add(transport)
        request = httpx.Request(
            method,
            url,
            headers=headers,
            content=body,
            extensions={"timeout": self._timeouts, "target": target},
        )
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await self._close(transport)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - the transport's

        async def close() -> None:
            on_close()
            await self._close(transport)

        response.stream = _Told(response.stream, close)
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in tuple(self._open):
            await self._close(transport)

    async def _close(self, transport: httpx.AsyncHTTPTransport) -> None:
        self._open.discard(transport)
        await transport.aclose()


class _Told(httpx.AsyncByteStream):
    """A body that tells when it is closed."""

    def __init__(
        self, body: httpx.AsyncByteStream, on_close: Callable[[], Awaitable[None]]
    ) -> None:
        self._body = body
        self._on_close: Callable[[], Awaitable[None]] | None = on_close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._body)

    async def aclose(self) -> None:
        told, self._on_close = self._on_close, None
        if told is None:
            return
        try:
            await self._body.aclose()
        finally:
            await told()
