"""The simulated server: an ASGI application with vLLM's routes."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.serve_config.serve_config import ServeConfig
from app.simulator.engine import Engine
from app.simulator.errors import Refusal
from app.simulator.metrics import exposition
from app.simulator.settings import SimulatorSettings
from app.simulator.wire.answer import now
from app.simulator.wire.chat import ChatRoute
from app.simulator.wire.completions import CompletionsRoute
from app.simulator.wire.generate import GenerateRoute
from app.simulator.wire.stream import ClientGone
from app.simulator.wire.tokens import DetokenizeRoute, TokenizeRoute

Handler = Callable[[Request], Awaitable[Response]]
_GUARDED = ("/v1", "/v2", "/inference")


def create_simulator(source: ServeConfig | SimulatorSettings | None = None) -> FastAPI:
    """Build a simulated vLLM server.

    Args:
        source: a resolved `vllm serve` configuration, whose version and settings the server
            follows, or the settings themselves; by default a server that is fit for replay.

    Returns:
        The application; `app.state.engine` has the counters of what it did.

    Raises:
        UnusableInput: the configuration leaves open what the simulation has to know.
    """
    if isinstance(source, ServeConfig):
        settings = SimulatorSettings.from_serve_config(source)
    else:
        settings = source or SimulatorSettings()
    engine = Engine(settings)
    app = FastAPI(title="Simulated vLLM", version=settings.vllm_version)
    app.state.engine = engine
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(ClientGone, _gone)
    operations = Operations(engine)
    generate = GenerateRoute(engine)
    routes: list[tuple[str, Handler, list[str]]] = [
        ("/health", operations.health, ["GET"]),
        ("/ping", operations.health, ["GET", "POST"]),
        ("/version", operations.version, ["GET"]),
        ("/load", operations.load, ["GET"]),
        ("/metrics", operations.metrics, ["GET"]),
        ("/v1/models", operations.models, ["GET"]),
        ("/tokenize", TokenizeRoute(settings), ["POST"]),
        ("/detokenize", DetokenizeRoute(settings), ["POST"]),
        ("/v1/completions", CompletionsRoute(engine), ["POST"]),
        ("/v1/chat/completions", ChatRoute(engine), ["POST"]),
    ]
    if settings.generate_enabled or settings.semantics.generate_disabled_status != 404:
        routes.append(("/inference/v1/generate", generate, ["POST"]))
    for path, handler, methods in routes:
        app.add_api_route(path, _endpoint(handler), methods=methods, response_model=None)
    if settings.api_keys:
        app.add_middleware(Authentication, keys=settings.api_keys)
    app.add_middleware(
        CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=["*"]
    )
    return app


def _endpoint(handler: Handler) -> Handler:
    """Wrap a handler object into a function with the signature FastAPI reads."""

    async def endpoint(request: Request) -> Response:
        return await handler(request)

    return endpoint


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 - what the handler is registered for
    return JSONResponse(error.body(), status_code=error.status)


async def _gone(_request: Request, _error: Exception) -> Response:
    """Answer nobody: the client left; the status is for the access log only."""
    return Response(status_code=499)


class Operations:
    """Health, version, models and counters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.settings

    async def health(self, _request: Request) -> Response:
        """Answer 503 once the engine is dead, as vLLM does until its process ends."""
        return Response(status_code=503 if self._engine.dead else 200)

    async def version(self, _request: Request) -> Response:
        """Give the simulated version."""
        return JSONResponse({"version": self._settings.vllm_version})

    async def load(self, _request: Request) -> Response:
        """Give 0, as a server without `--enable-server-load-tracking`."""
        return JSONResponse({"server_load": 0})

    async def metrics(self, _request: Request) -> Response:
        """Give the engine's counters under vLLM's metric names."""
        content, media_type = exposition(self._engine)
        return Response(content, media_type=media_type)

    async def models(self, _request: Request) -> Response:
        """List the served names."""
        return JSONResponse(
            {"object": "list", "data": [self._card(n) for n in self._settings.served_model_name]}
        )

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": now(),
            "owned_by": "vllm",
            "root": self._settings.model,
            "parent": None,
            "max_model_len": self._settings.max_model_len,
            "permission": [
                {
                    "id": f"modelperm-{uuid.uuid4().hex[:16]}",
                    "object": "model_permission",
                    "created": now(),
                    "allow_create_engine": False,
                    "allow_sampling": True,
                    "allow_logprobs": True,
                    "allow_search_indices": False,
                    "allow_view": True,
                    "allow_fine_tuning": False,
                    "organization": "*",
                    "group": None,
                    "is_blocking": False,
                }
            ],
        }


class Authentication:
    """Asks for one of the API keys on the routes that vLLM guards.

    Source: `vllm/entrypoints/serve/middleware/authenticate.py`.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["method"] != "OPTIONS":
            request = Request(scope)
            if request.url.path.startswith(_GUARDED) and not self._knows(request):
                await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _knows(self, request: Request) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.encode()).digest()
        known = [secrets.compare_digest(digest, own) for own in self._digests]
        return scheme.lower() == "bearer" and any(known)
