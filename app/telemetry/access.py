"""The access log: one event for each request, with where its time went and how it ended."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Final

from starlette.types import Scope
from structlog.typing import FilteringBoundLogger

from app.telemetry.exchange import Exchange

CLIENT_LEFT: Final = "client-left"
_CLIENT_LEFT_STATUS: Final = 499
_LONGEST_PATH: Final = 256
# Asked every few seconds by machines.
_PROBES: Final = frozenset({"/livez", "/readyz", "/startupz", "/metrics"})


class AccessLog(StrEnum):
    """Which requests are logged."""

    ALL = "all"
    ERRORS = "errors"
    OFF = "off"


class Access:
    """One request on its way into the access log."""

    __slots__ = ("_began", "_exchange", "_scope")

    def __init__(self, scope: Scope, exchange: Exchange) -> None:
        """Begin when the request's header has been read."""
        self._scope = scope
        self._exchange = exchange
        self._began = time.perf_counter()

    def end(self, which: AccessLog, log: FilteringBoundLogger) -> None:
        """Log it to `log`, if `which` asks for that."""
        exchange = self._exchange
        exchange.settle(self._scope)
        if which is AccessLog.OFF:
            return
        outcome, status = exchange.outcome, exchange.status
        if not status and outcome == CLIENT_LEFT:
            status = _CLIENT_LEFT_STATUS
        failed = exchange.failed
        if which is AccessLog.ERRORS and not (failed or status >= 400 or outcome == CLIENT_LEFT):
            return
        quiet = log.debug if exchange.route in _PROBES else log.info
        tell = log.warning if failed else quiet
        event = {
            "request_id": exchange.request_id,
            "trace_id": exchange.trace_id,
            "method": self._scope["method"],
            "path": self._scope["path"][:_LONGEST_PATH],
            "route": exchange.route,
            "status": status,
            "outcome": outcome,
            "duration_s": round(time.perf_counter() - self._began, 6),
        }
        if exchange.own:
            event["own_s"] = round(exchange.own, 6)
        if exchange.backend:
            event["upstream_s"] = round(exchange.backend, 6)
        if exchange.first_byte is not None:
            event["first_byte_s"] = round(exchange.first_byte, 6)
        if exchange.client:
            event["client_s"] = round(exchange.client, 6)
        tell("request", **event)
