"""One HTTP exchange as logs, metrics and traces tell it, filled in while it runs.

The outermost middleware puts it into the ASGI scope; whoever knows something writes it there.
"""

from __future__ import annotations

import time
import types
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from starlette.types import Scope

_T = TypeVar("_T")
_KEY: Final = "vllm_admission.exchange"
# The backend broke off in the middle; this process ended or crashed before it had answered.
_FAILED: Final = frozenset({"cut", "aborted"})


class Party(Enum):
    """Whom an exchange waits for."""

    CLIENT = "client"
    BACKEND = "backend"


@dataclass(slots=True)
class Exchange:
    """What is known so far. Times are in seconds.

    Attributes:
        request_id: as settled; the client is told the same.
        trace_id: 32 hex digits of the W3C trace that the request belongs to, if any.
        route: a name of a fixed list, fit for a metric's label.
        outcome: how it ended, of a fixed list; empty while it runs.
        status: of the response; 0 while none has begun.
        first_byte: from sending the request until the backend's response header.
        own: spent in this process, by the exchange's own task.
        client: waited for the client: its body, or its taking the answer.
        backend: waited for the backend.
        waits_for: whom the waits that come are for.
    """

    request_id: str = ""
    trace_id: str | None = None
    route: str = ""
    outcome: str = ""
    status: int = 0
    first_byte: float | None = None
    own: float = 0.0
    client: float = 0.0
    backend: float = 0.0
    waits_for: Party = Party.CLIENT

    @property
    def failed(self) -> bool:
        """Whether it went wrong here or at the backend, not by the client's doing."""
        return self.status >= 500 or self.outcome in _FAILED

    def settle(self, scope: Scope) -> None:
        """Fill in, at the end, what nobody has said: for our own paths that is most of it."""
        if not self.outcome:
            self.outcome = f"{self.status // 100}xx" if self.status else "aborted"
        if not self.route:
            # FastAPI leaves the route in the scope; its path has placeholders for parameters.
            path = getattr(scope.get("route"), "path_format", None)
            self.route = path if isinstance(path, str) else "other"

    @types.coroutine
    def timed(self, work: Coroutine[Any, Any, _T]) -> Generator[Any, Any, _T]:
        """Await `work` and tell its own time from its waits, which no clock around it can."""
        clock = time.perf_counter
        error: BaseException | None = None
        began = clock()
        try:
            while True:
                try:
                    awaited = work.send(None) if error is None else work.throw(error)
                except StopIteration as end:
                    result: _T = end.value
                    return result
                left = clock()
                self.own += left - began
                error = None
                try:
                    yield awaited
                except BaseException as thrown:  # thrown on into `work`
                    error = thrown
                began = clock()
                if self.waits_for is Party.BACKEND:
                    self.backend += began - left
                else:
                    self.client += began - left
        finally:
            self.own += clock() - began


def exchange_of(scope: Scope) -> Exchange:
    """Give the exchange of a scope, a new one if nobody has put one there."""
    exchange = scope.get(_KEY)
    if isinstance(exchange, Exchange):
        return exchange
    scope[_KEY] = exchange = Exchange()
    return exchange
