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
        seconds = {
            "duration": time.perf_counter() - self._began,
            "own": exchange.own or None,
            "upstream": exchange.backend or None,
            "first_byte": exchange.first_byte,
            "client": exchange.client or None,
        }
        tell(
            "request",
            request_id=exchange.request_id,
            trace_id=exchange.trace_id,
            method=self._scope["method"],
            path=self._scope["path"][:_LONGEST_PATH],
            route=exchange.route,
            status=status,
            outcome=outcome,
            **{f"{name}_s": round(t, 6) for name, t in seconds.items() if t is not None},
        )
