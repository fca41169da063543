"""The client side of the relay: requests to the backend, byte for byte.

Responses and errors are httpx's, the connections aiohttp's: httpx's own pool re-scans every
connection for every queued request and collapses with many (docs/adr/0001).
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
import httpx
from multidict import CIMultiDict
from yarl import URL

from app.relay.exact import ExactSender
from app.relay.handshake import AnswerToUpgrade, BackendSocket, SocketOptions
from app.relay.headers import RawHeaders

# vLLM's server closes an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE). Dropping
# ours well before keeps a request from meeting a connection that is just being closed.
_KEEP_ALIVE_SECONDS = 2.0
# aiohttp writes bytes in one piece and warns above this size; a file is written in parts.
_LARGE_BODY = 2**20
_MAX_HEADER_BYTES = 64 * 1024
_LAST_STATUS = 599
_ADDED_BY_AIOHTTP = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class _ResponseBytes(httpx.AsyncByteStream):
    """The raw body, one item for each read of the socket."""

    def __init__(self, response: aiohttp.ClientResponse, on_close: Callable[[], None]) -> None:
        self._response = response
        self._on_close: Callable[[], None] | None = on_close
        _fail_when_connection_ends(response)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        # Not a generator: streams come through here once for each of their reads. What has
        # arrived meanwhile is one read, however many events it is.
        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError):
            with _as_httpx_errors():
                raise
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        """Close the connection at once unless the body was read to its end."""
        self._response.close()
        told, self._on_close = self._on_close, None
        if told is not None:
            told()


def _fail_when_connection_ends(response: aiohttp.ClientResponse) -> None:
    """Fail the reader of a body when its connection closes before the body's end.

    After a malformed chunk aiohttp (3.14) closes the connection without telling whoever reads
    the body, and drops its read timeout, so that the reader would wait forever.
    """
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:
        return

    def fail(_: asyncio.Future[None]) -> None:
        if not response.content.is_eof() and response.content.exception() is None:
            response.content.set_exception(
                aiohttp.ClientPayloadError("the connection ended within the body")
            )

    def forget() -> None:
        closed.remove_done_callback(fail)

    closed.add_done_callback(fail)
    response.content.on_eof(forget)
    # Whoever asks for the future must take its exception; once per connection is enough.
    closed.remove_done_callback(_retrieve)
    closed.add_done_callback(_retrieve)


def _retrieve(closed: asyncio.Future[None]) -> None:
    if not closed.cancelled():
        closed.exception()


def base_url(url: str) -> httpx.URL:
    """Read the URL of a backend; it may have a path.

    Raises:
        ValueError: it is not an absolute http or https URL, or has parts that cannot be kept.
    """
    try:
        parsed = httpx.URL(url)
        URL(str(parsed))  # what it is sent by is stricter about hosts and ports
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"it is no URL: {error}") from error
    if "%" in parsed.host:
        raise ValueError(f"{parsed.host!r} is no host")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("it must begin with http:// or https:// and name a host")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError("it may have a path, but no user, query or fragment")
    return parsed


def base_urls(text: str) -> list[httpx.URL]:
    """Read the URLs of one backend or several, with commas between them.

    Raises:
        ValueError: one is none (see `base_url`), or is there twice.
    """
    urls = [base_url(part.strip()) for part in text.split(",")]
    if len(set(urls)) < len(urls):
        raise ValueError("a backend is named twice")
    return urls


class Backend:
    """One vLLM server. Make it inside the running event loop; `aclose` it there.

    `in_flight` counts requests whose response is not closed yet, and open WebSockets.
    """

    def __init__(self, url: str, *, connect_timeout: float, idle_timeout: float) -> None:
        """Take the base URL; timeouts in seconds, `idle_timeout` between two reads.

        There is no total timeout: a long generation is not a fault.

        Raises:
            ValueError: see `base_url`.
        """
        self.url = base_url(url)
        self._prefix = self.url.raw_path.rstrip(b"/")
        self._origin = f"{self.url.scheme}://{self.url.netloc.decode('ascii')}"
        # What responses say they answer; nobody asks more of it than the backend's URL.
        self._asked = httpx.Request("GET", self.url)
        self.in_flight = 0
        self._exact = ExactSender(connect_timeout=connect_timeout, idle_timeout=idle_timeout)
        timeout = aiohttp.ClientTimeout(sock_connect=connect_timeout, sock_read=idle_timeout)
        self._session = _session(timeout=timeout)
        self._sockets = _session(
            response_class=AnswerToUpgrade, ws_response_class=BackendSocket, timeout=timeout
        )

    async def send(
        self,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:
        """Send a request; the response's `stream` is unread and must be closed.

        aiohttp itself repeats a GET, HEAD, OPTIONS, PUT or DELETE once if the connection it kept
        turns out to be closed, as RFC 9110 section 9.2.2 allows. A POST is never sent twice.

        Args:
            method: as received.
            target: path and query exactly as received (RFC 9112 origin form).
            headers: fields to send; Host is set here.
            body: all of it, or parts as they come, or None.

        Raises:
            httpx.TransportError: see `app.relay.faults.fault_of`.
        """
        self.in_flight += 1
        try:
            fields = _fields(headers)
            if fields is None:
                exact = await self._exact.send(
                    method, self.url, _quoted(self._prefix + target), headers, body, self._left
                )
                exact.request = self._asked
                return exact
            response = await self._session.request(
                method,
                _url_of(self._origin, self._prefix + target),
                headers=fields,
                data=_payload(body),
                allow_redirects=False,
            )
            if not HTTPStatus.OK <= response.status <= _LAST_STATUS:
                response.close()
                raise httpx.RemoteProtocolError(f"status {response.status}")
        except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError):
            self._left()
            with _as_httpx_errors():
                raise
        except BaseException:
            self._left()
            raise
        return httpx.Response(
            response.status,
            headers=list(response.raw_headers),
            stream=_ResponseBytes(response, self._left),
            request=self._asked,
        )

    async def open_socket(
        self, target: bytes, headers: RawHeaders, options: SocketOptions
    ) -> BackendSocket:
        """Open a WebSocket, whose `abort` ends it.

        Args:
            target: path and query exactly as received.
            headers: fields to send, without those of the handshake itself.
            options: subprotocols and limits.

        Raises:
            HandshakeDenied: the backend answers, and does not open one.
            httpx.TransportError: see `app.relay.faults.fault_of`.
        """
        self.in_flight += 1
        try:
            with _as_httpx_errors():
                opened = await self._sockets.ws_connect(
                    _url_of(self._origin, self._prefix + target),
                    protocols=options.protocols,
                    headers=_fields(headers) or _latin(headers),
                    max_msg_size=options.max_message_bytes,
                    timeout=aiohttp.ClientWSTimeout(ws_close=options.close_seconds),
                )
        except BaseException:
            self._left()
            raise
        assert isinstance(opened, BackendSocket)  # noqa: S101 - the session's class of them
        opened.on_abort = self._left
        return opened

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._sockets.close()
        await self._exact.aclose()

    def _left(self) -> None:
        self.in_flight -= 1


def _session(**options: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=_ADDED_BY_AIOHTTP,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        **options,
    )


def _payload(
    body: bytes | AsyncIterator[bytes] | None,
) -> bytes | io.BytesIO | AsyncIterator[bytes] | None:
    if isinstance(body, bytes) and len(body) > _LARGE_BODY:
        return io.BytesIO(body)
    return body or None


def _fields(headers: RawHeaders) -> CIMultiDict[str] | None:
    """Give the fields as text, which aiohttp encodes as UTF-8; None where that changes octets."""
    try:
        return CIMultiDict(
            [(name.decode("ascii"), value.decode("utf-8")) for name, value in headers]
        )
    except UnicodeDecodeError:
        return None


def _latin(headers: RawHeaders) -> CIMultiDict[str]:
    """Give fields of a handshake whose octets are no UTF-8: what aiohttp can do for them."""
    return CIMultiDict([(name.decode("ascii"), value.decode("latin-1")) for name, value in headers])


@lru_cache(maxsize=256)
def _url_of(origin: str, target: bytes) -> URL:
    # RFC 3986 allows only ASCII; other octets are sent percent-encoded, which means the same.
    return URL(origin + _quoted(target).decode("ascii"), encoded=True)


def _quoted(target: bytes) -> bytes:
    return quote(target, safe=_ASCII_PRINTABLE).encode("ascii")


_ASCII_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(_told(error)) from error
    except aiohttp.ServerTimeoutError as error:
        raise httpx.ReadTimeout(_told(error)) from error
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        raise httpx.ConnectError(_told(error)) from error
    except aiohttp.ClientConnectionError as error:
        raise httpx.ReadError(_told(error)) from error
    except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError) as error:
        raise httpx.RemoteProtocolError(_told(error)) from error


def _told(error: Exception) -> str:
    """Say an error as a client may see it: without the backend's address, in one line.

    The log has the rest, from the error's cause.
    """
    match error:
        case aiohttp.ClientConnectorError():
            text = _words(error.os_error)
        case aiohttp.ClientResponseError() | aiohttp.http_exceptions.HttpProcessingError():
            text = error.message
        case TimeoutError():
            text = "timeout"
        case aiohttp.ServerDisconnectedError():
            text = "server disconnected"
        case aiohttp.ClientPayloadError():
            text = "the body ended too early or is malformed"
        case OSError():
            text = _words(error)
        case _:
            text = type(error).__name__
    return text.strip().partition("\n")[0].rstrip(":")


def _words(error: OSError) -> str:
    """Say what the system said; asyncio puts addresses into its own words for it."""
    if isinstance(error, socket.gaierror):
        return error.strerror or "unknown host"
    return os.strerror(error.errno) if error.errno else type(error).__name__
