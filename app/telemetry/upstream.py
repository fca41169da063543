"""The client span around each request to a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import httpx

from app.relay.fleet import Upstream
from app.relay.handshake import BackendSocket, SocketOptions
from app.relay.headers import RawHeaders
from app.telemetry.genai import (
    LARGEST_BODY,
    STREAM_TAIL,
    answer_attributes,
    operation_of,
    request_attributes,
)
from app.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class TracedUpstream:
    """An upstream whose requests are spans, from sending one until its response is closed."""

    def __init__(self, upstream: Upstream, tracing: Tracing) -> None:
        """Send to `upstream`, which this one then owns."""
        self._upstream = upstream
        self._tracing = tracing

    @property
    def url(self) -> httpx.URL:
        """See `Upstream`."""
        return self._upstream.url

    async def send(
        self,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:
        """Send a request, and tell the backend the span that it belongs below."""
        span = self._begin(method, target, body)
        fields = self._tracing.with_context(headers, span)
        try:
            response = await self._upstream.send(method, target, fields, body)
        except BaseException as error:
            self._tracing.fail(span, type(error).__name__)
            span.end()
            raise
        self._place(span, response.request.url)
        span.set_attribute("http.response.status_code", response.status_code)
        if response.status_code >= 400:
            self._tracing.fail(span, str(response.status_code))
        response.stream = _SpannedBytes(response, span, self._tracing)
        return response

    async def open_socket(
        self, target: bytes, headers: RawHeaders, options: SocketOptions
    ) -> BackendSocket:
        """Open a WebSocket; the span is that of its handshake."""
        span = self._begin("GET", target, None)
        try:
            return await self._upstream.open_socket(
                target, self._tracing.with_context(headers, span), options
            )
        except BaseException as error:
            self._tracing.fail(span, type(error).__name__)
            raise
        finally:
            span.end()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._upstream.aclose()

    def _begin(self, method: str, target: bytes, body: bytes | AsyncIterator[bytes] | None) -> Span:
        path = target.partition(b"?")[0].decode("latin-1")
        operation = operation_of(path)
        span = self._tracing.client_span(operation or method, method)
        if not span.is_recording():
            return span
        self._place(span, self.url)
        span.set_attribute("url.path", path)
        if operation is not None and isinstance(body, bytes):
            span.set_attributes(request_attributes(operation, body))
        return span

    def _place(self, span: Span, url: httpx.URL) -> None:
        span.set_attribute("server.address", url.host)
        span.set_attribute("server.port", url.port or _DEFAULT_PORTS[url.scheme])


class _SpannedBytes(httpx.AsyncByteStream):
    """A response's body whose closing ends the span; of what passes only counts are kept."""

    def __init__(self, response: httpx.Response, span: Span, tracing: Tracing) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - a backend's is
        self._stream = response.stream
        self._span = span
        self._tracing = tracing
        content_type: str = response.headers.get("content-type", "")
        encoded = response.headers.get("content-encoding", "identity") != "identity"
        self._streamed = content_type.startswith("text/event-stream")
        readable = self._streamed or content_type.startswith("application/json")
        self._keeps = span.is_recording() and readable and not encoded
        self._kept = bytearray()
        self._complete = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            if self._keeps:
                self._keep(data)
            yield data
        self._complete = True

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if self._streamed:
            del self._kept[:-STREAM_TAIL]
        elif len(self._kept) > LARGEST_BODY:
            self._keeps = False
            self._kept.clear()

    async def aclose(self) -> None:
        """Close the body, and end the span."""
        try:
            await self._stream.aclose()
        finally:
            if self._keeps:
                self._span.set_attributes(
                    answer_attributes(bytes(self._kept), streamed=self._streamed)
                )
            if not self._complete:
                self._tracing.fail(self._span, "incomplete")
            self._span.end()
