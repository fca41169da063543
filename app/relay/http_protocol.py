"""The listening side's HTTP/1.1, with bounds that uvicorn's own has not.

httptools collects a header of any length for any time. A client that reads nothing keeps a
connection open for as long as TCP allows, since closing it first waits for what is unsent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from app.errors import AdmissionError
from app.relay.exchange import ABORT, ARRIVED, DEPARTURE
from app.relay.faults import BodyTooSlow, HeaderTooLarge

# What a field takes on the wire beside its name and value: colon, space, CR, LF.
_FIELD_OVERHEAD = 4
_LINGERING_SECONDS = 1.0
_NO_REQUEST = "Invalid HTTP request received."


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """What a request's header may cost.

    Attributes:
        max_bytes: of the request line and all fields.
        timeout: seconds in which it arrives.
    """

    max_bytes: int = 64 * 1024
    timeout: float = 30.0


class GuardedHttp(HttpToolsProtocol):
    """One connection of a client.

    Exchanges find in their scope how to cut it (`ABORT`) and how to learn of its end
    (`DEPARTURE`).
    """

    limits = HeaderLimits()

    def __init__(self, *args: Any, **options: Any) -> None:
        """As uvicorn calls it."""
        super().__init__(*args, **options)
        self._in_head = False
        self._head_bytes = 0
        self._refused = False
        self._framing = b""
        self._timer: asyncio.TimerHandle | None = None
        self._departures = Departures()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin; a client that then says nothing is not waited for."""
        super().connection_made(transport)
        # A long body may have paused it, and a paused connection does not notice its end.
        self._departures.before = self.flow.resume_reading
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._disarm()
        super().connection_lost(exc)
        self._departures.tell()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._feed(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.limits.max_bytes:
            self._refuse(self._too_large())
        elif self._timer is None:
            self._arm()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        extensions: dict[str, Any] = {
            ABORT: self.transport.abort,
            DEPARTURE: self._departures,
        }
        self.scope["extensions"] = extensions
        self._in_head = True
        self._head_bytes = 0

    def _feed(self, data: bytes) -> None:
        """Parse, as uvicorn does; but a message that offers another protocol has a body too."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response(_NO_REQUEST)
        except httptools.HttpParserUpgrade as offer:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
            rest = data[offer.args[0] :]
            framing, self._framing = self._framing, b""
            if framing:
                self.parser = httptools.HttpRequestParser(_BodyOf(self))
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
                self._feed(framing)
            if rest and not (self._refused or self.transport.is_closing()):
                self._feed(rest)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the header; those of a trailer end here, as RFC 9110 6.5.1 has it.

        The parser leaves the blanks behind a value in it, which are none of it: `14 ` is a length.
        """
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))

    def on_message_complete(self) -> None:
        """End a request, unless the parser left out its body because of an offer to upgrade."""
        if not self._framing:
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Take the header, unless it is too long after all.

        Raises:
            HeaderTooLarge: it is; the parser passes that on as an error of its own.
        """
        self._in_head = False
        self._disarm()
        size = len(self.url) + sum(
            len(name) + len(value) + _FIELD_OVERHEAD for name, value in self.headers
        )
        if size > self.limits.max_bytes:
            self._head_bytes = size
            raise self._too_large()
        self._head_bytes = 0
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # not where a WebSocket begins
            extensions: dict[str, Any] = cycle.scope["extensions"]
            extensions[ARRIVED] = partial(_arrived_body, cycle)
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._framing = _framing_of(self.headers)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over, with the way to cut it."""
        super().handle_websocket_upgrade()
        scope = getattr(self.transport.get_protocol(), "scope", None)
        if scope is not None:
            scope["extensions"][ABORT] = self.transport.abort

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, or has too long a header."""
        cycle = self.cycle
        if self._head_bytes > self.limits.max_bytes:
            self._refuse(self._too_large())
        elif not self._answering:
            super().send_400_response(msg)
        elif self.pipeline or cycle.response_started:
            self.transport.close()
        else:  # the body is malformed; whoever waits for it must not answer any more
            cycle.disconnected = True
            cycle.message_event.set()
            super().send_400_response(msg)

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _too_large(self) -> HeaderTooLarge:
        return HeaderTooLarge(
            f"the request line and header fields are longer than {self.limits.max_bytes} bytes "
            "(VLLM_ADMISSION_MAX_HEADER_BYTES)"
        )

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.limits.timeout, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._answering:
            self._arm()
        elif self._in_head:
            self._refuse(
                BodyTooSlow(
                    f"the request's header did not arrive in {self.limits.timeout:g} s "
                    "(VLLM_ADMISSION_HEADER_TIMEOUT)"
                )
            )
        else:
            self.transport.close()

    def _refuse(self, error: AdmissionError) -> None:
        """Answer with an error and close; an answer that is under way is not written into.

        What the client still sends is thrown away for a moment: closing at once would reset the
        connection, and the client might never see why.
        """
        self._refused = True
        if not self._answering:
            body = json.dumps(error.vllm_json()).encode()
            self.transport.write(
                STATUS_LINE[error.status]
                + b"content-type: application/json\r\nconnection: close\r\n"
                + b"content-length: %d\r\n\r\n" % len(body)
                + body
            )
            if self.transport.can_write_eof():
                self.transport.write_eof()
                self._disarm()
                self._timer = self.loop.call_later(_LINGERING_SECONDS, self.transport.close)
                return
        self.transport.close()


class _BodyOf:
    """Takes a body that the parser left out, then the requests that follow it."""

    def __init__(self, connection: GuardedHttp) -> None:
        self._connection = connection
        self._in_framing = True
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete

    def on_url(self, url: bytes) -> None:
        if not self._in_framing:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_framing:
            self._connection.on_header(name, value)

    def on_message_begin(self) -> None:
        if not self._in_framing:
            self._connection.on_message_begin()

    def on_headers_complete(self) -> None:
        if not self._in_framing:
            self._connection.on_headers_complete()
        self._in_framing = False


def _framing_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Give a header that says nothing but how long the body is; empty without one."""
    fields = [
        name + b": " + value + b"\r\n"
        for name, value in headers
        if name in (b"content-length", b"transfer-encoding")
    ]
    return b"POST / HTTP/1.1\r\n" + b"".join(fields) + b"\r\n" if fields else b""


class Departures:
    """Whom to tell when the client of a connection is gone.

    Of pipelined requests one may begin before the one before it has put away its things.
    """

    __slots__ = ("_callbacks", "_gone", "before")

    def __init__(self) -> None:
        """Begin with nobody; `before` is called whenever somebody asks."""
        self._callbacks: list[Callable[[], None]] = []
        self._gone = False
        self.before: Callable[[], None] = _nothing

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the client is gone, at once if it is already."""
        if self._gone:
            callback()
            return
        self.before()
        self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Call it no more."""
        with suppress(ValueError):
            self._callbacks.remove(callback)

    def tell(self) -> None:
        """The client is gone."""
        self._gone = True
        for callback in self._callbacks:
            callback()


def _nothing() -> None:
    pass


def _arrived_body(cycle: RequestResponseCycle) -> bytes | None:
    """Give a request's body if it is there to its end, and receiving it has not begun."""
    if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
        return None
    body = bytes(cycle.body)
    cycle.body.clear()
    return body


def guarded_http(limits: HeaderLimits) -> type[asyncio.Protocol]:
    """Give the protocol with these limits, for uvicorn's `http` option."""
    return type("GuardedHttp", (GuardedHttp,), {"limits": limits})
