"""Requests whose field values are not UTF-8: aiohttp would encode those octets anew.

They are rare (a name in Latin-1), so that httpx's own transport is fast enough for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx

from app.relay.headers import RawHeaders

# A connection for each: with none kept, none turns out to be closed.
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=0)


class ExactSender:
    """Sends every octet as it is. The transport is made with the first request."""

    def __init__(self, *, connect_timeout: float, idle_timeout: float) -> None:
        """Take the timeouts of the backend, in seconds."""
        self._timeouts = {"connect": connect_timeout, "read": idle_timeout, "write": idle_timeout}
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def send(
        self,
        method: str,
        url: httpx.URL,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterator[bytes] | None,
        on_close: Callable[[], None],
    ) -> httpx.Response:
        """Send as `Backend.send` does; to `target` at the server of `url`.

        `on_close` is called once, when the response is closed, if there is one.

        Raises:
            httpx.TransportError: see `app.relay.faults.fault_of`.
        """
        if self._transport is None:
            self._transport = httpx.AsyncHTTPTransport(limits=_LIMITS, trust_env=False)
        request = httpx.Request(
            method,
            url,
            headers=headers,
            content=body,
            extensions={"timeout": self._timeouts, "target": target},
        )
        response = await self._transport.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - the transport's
        response.stream = _Told(response.stream, on_close)
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        if self._transport is not None:
            await self._transport.aclose()


class _Told(httpx.AsyncByteStream):
    """A body that tells when it is closed."""

    def __init__(self, body: httpx.AsyncByteStream, on_close: Callable[[], None]) -> None:
        self._body = body
        self._on_close: Callable[[], None] | None = on_close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._body)

    async def aclose(self) -> None:
        told, self._on_close = self._on_close, None
        if told is not None:
            told()
        await self._body.aclose()
