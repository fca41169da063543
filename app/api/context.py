"""What every request gets: an id, a trace, a date, its line in the access log.

Pure ASGI, so that disconnects stay visible.
"""

from __future__ import annotations

from email.utils import formatdate

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from app.relay.headers import header, request_id_of
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
        self._log: FilteringBoundLogger | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        exchange.request_id = request_id_of(header(scope["headers"], b"x-request-id"))
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
                headers = list(message.get("headers", ()))
                names = {name for name, _ in headers}
                if b"x-request-id" not in names:
                    headers.append((b"x-request-id", exchange.request_id.encode()))
                if b"date" not in names:
                    headers.append((b"date", formatdate(usegmt=True).encode()))
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _log.exception("unexpected error", request_id=exchange.request_id, path=scope["path"])
            raise
        finally:
            # Bound once, after logging was configured: that is half of what a line costs.
            self._log = self._log or _log.bind()
            access.end(self._access_log, self._log)


def _join_trace(scope: Scope, exchange: Exchange) -> None:
    """Belong to the trace that the request names, or begin one and let the header name it."""
    received = received_context(scope["headers"])
    if received is None:
        received = next_hop(None)
        fields = [f for f in scope["headers"] if f[0] not in (TRACEPARENT, TRACESTATE)]
        scope["headers"] = [*fields, (TRACEPARENT, received.traceparent)]
    exchange.trace_id = received.trace_id.decode()
