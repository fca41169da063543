"""Which paths are the backend's, and which are ours."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.main import create_app
from app.relay.dispatch import RelayFirst, own_segments
from app.settings import Settings
from tests.relay.faulty import Peer, Seen, faulty_backend
from tests.support import serving


async def _nothing(_: Scope, __: Receive, ___: Send) -> None:
    return None


def test_the_first_segments_of_routes_are_ours() -> None:
    routes = [
        Route("/replay/batch", _nothing),
        Route("/rules/{id}", _nothing),
        Route("/", _nothing),
    ]
    assert own_segments(routes) == {"replay", "rules", ""}
    with pytest.raises(ValueError, match="leaves nothing to relay"):
        own_segments([Route("/{path:path}", _nothing)])


@pytest.mark.parametrize(
    ("kind", "path", "ours"),
    [
        ("http", "/validate", True),
        ("http", "/validate/more", True),
        ("http", "/validated", False),
        ("http", "/v1/validate", False),
        ("http", "//validate", False),
        ("websocket", "/validate", False),
        ("lifespan", "", True),
    ],
)
@pytest.mark.asyncio
async def test_a_path_goes_to_one_of_the_two(kind: str, path: str, ours: bool) -> None:
    went: list[str] = []

    def app(name: str) -> object:
        async def call(_: Scope, __: Receive, ___: Send) -> None:
            went.append(name)

        return call

    dispatch = RelayFirst(app("own"), app("relay"), frozenset({"validate"}))  # type: ignore[arg-type] # ASGI
    await dispatch({"type": kind, "path": path}, None, None)  # type: ignore[arg-type] # not called
    assert went == ["own" if ours else "relay"]


@pytest.mark.asyncio
async def test_in_the_service_other_methods_of_our_paths_stay_with_us() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await peer.answer(request.line.encode())

    async with faulty_backend(script) as backend:
        app: FastAPI = create_app(Settings(backend_url=backend.url, drift_interval=0))
        async with (
            serving(app) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            ours = await client.delete("/validate")
            below = await client.get("/rules/none/such")
            backends = await client.delete("/v1/files/7")
            metrics = await client.get("/metrics/backend?format=text")
            own = await client.get("/metrics")
    assert ours.status_code == 405
    assert below.text == "GET /rules/none/such HTTP/1.1"
    assert backends.text == "DELETE /v1/files/7 HTTP/1.1"
    assert metrics.text == "GET /metrics?format=text HTTP/1.1"
    assert "vllm_admission_" in own.text
    assert backends.headers["date"]
    assert backends.headers["x-request-id"]
