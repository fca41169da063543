"""What is the backend's goes to the relay at once, without a look at our own routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

BACKEND_METRICS: Final = "/metrics/backend"
"""Where the backend's own `/metrics` is found, since that path is ours."""


class RelayFirst:
    """Pure ASGI: paths that begin as none of ours does, and all WebSockets, are relayed."""

    def __init__(self, app: ASGIApp, relay: ASGIApp, own: frozenset[str]) -> None:
        """Pass to `relay` whatever does not begin with a path segment of `own`."""
        self._app = app
        self._relay = relay
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        kind = scope["type"]
        if kind == "http" and scope["path"] == BACKEND_METRICS:
            scope = {**scope, "path": "/metrics", "raw_path": b"/metrics"}
            await self._relay(scope, receive, send)
            return
        ours = kind == "lifespan" or (kind == "http" and first_segment(scope["path"]) in self._own)
        await (self._app if ours else self._relay)(scope, receive, send)


def first_segment(path: str) -> str:
    """Give what stands between the first and the second slash."""
    return path[1:].partition("/")[0]


def own_segments(routes: Iterable[BaseRoute]) -> frozenset[str]:
    """Give the first segments of our own paths.

    Raises:
        ValueError: one begins with a parameter, so that any path might be ours.
    """
    found = set()
    for route in routes:
        if isinstance(route, Route | WebSocketRoute | Mount):
            segment = first_segment(route.path)
            if "{" in segment:
                raise ValueError(f"{route.path} leaves nothing to relay")
            found.add(segment)
    return frozenset(found)
