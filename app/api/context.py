"""What every request gets: an id, a trace, a date, its line in the access log.

Pure ASGI, so that disconnects stay visible.
"""

from __future__ import annotations

from email.utils import formatdate

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.relay.headers import request_id_of
from app.relay.trace import TRACEPARENT, TRACESTATE, next_hop, received_context
from app.telemetry.access import Access, AccessLog
from app.telemetry.exchange import Exchange, exchange_of
from app.telemetry.tracing import Tracing

_log = structlog.get_logger("vllm_admission.access")


class RequestContext:
    """Accepts a safe `X-Request-Id` or mints one, echoes it, and tells of the request under it.

    A request without a valid `traceparent` begins a trace here; inner applications find one in
    its header in any case.
    """

    def __init__(
        self,
        app: ASGIApp,
        access_log: AccessLog = AccessLog.ALL,
        tracing: Tracing | None = None,
    ) -> None:
        """Wrap `app`."""
        self._app = app
        self._access_log = access_log
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        exchange.request_id = request_id_of(Headers(scope=scope).get("x-request-id"))
        scope["request_id"] = exchange.request_id
        if self._tracing is None:
            _join_trace(scope, exchange)
            await self._respond(scope, receive, send, exchange)
        else:
            with self._tracing.server_span(scope, exchange):
                await self._respond(scope, receive, send, exchange)

    async def _respond(
        self, scope: Scope, receive: Receive, send: Send, exchange: Exchange
    ) -> None:
        access = Access(scope, exchange)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.setdefault("x-request-id", exchange.request_id)
                headers.setdefault("date", formatdate(usegmt=True))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _log.exception("unexpected error", request_id=exchange.request_id, path=scope["path"])
            raise
        finally:
            access.end(self._access_log)


def _join_trace(scope: Scope, exchange: Exchange) -> None:
    """Belong to the trace that the request names, or begin one and let the header name it."""
    received = received_context(scope["headers"])
    if received is None:
        received = next_hop(None)
        fields = [f for f in scope["headers"] if f[0] not in (TRACEPARENT, TRACESTATE)]
        scope["headers"] = [*fields, (TRACEPARENT, received.traceparent)]
    exchange.trace_id = received.trace_id.decode()
