"""405 for methods that our own paths do not take, which would else reach the backend."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send


class OtherMethods:
    """An ASGI application that refuses, saying which methods there are."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Refuse all but `allowed`, which are routed before."""
        self._allow = ", ".join(sorted(allowed))

    async def __call__(self, *_: Scope | Receive | Send) -> None:
        """Handle one HTTP request."""
        detail = f"this path takes {self._allow}"
        raise HTTPException(405, detail, headers={"allow": self._allow})


def other_methods(routes: Iterable[BaseRoute]) -> list[Route]:
    """Give for each path of ours the route that refuses its other methods."""
    methods: dict[str, set[str]] = {}
    for route in routes:
        if isinstance(route, APIRoute):
            methods.setdefault(route.path, set()).update(route.methods or ())
    return [
        Route(path, OtherMethods(allowed), include_in_schema=False)
        for path, allowed in methods.items()
    ]
