"""Request ids and dates on our own endpoints; pure ASGI, so that disconnects stay visible."""

from __future__ import annotations

from email.utils import formatdate

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.relay.headers import request_id_of
from app.telemetry.exchange import exchange_of

_log = structlog.get_logger("vllm_admission.access")


class RequestContext:
    """Accepts a safe `X-Request-Id` or mints one, echoes it, and logs failures under it."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope).get("x-request-id"))
        scope["request_id"] = exchange_of(scope).request_id = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("x-request-id", request_id)
                headers.setdefault("date", formatdate(usegmt=True))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _log.exception("unexpected error", request_id=request_id, path=scope["path"])
            raise
