"""The application: three gates wired together. Nothing happens at import time."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from app.admitted import admit
from app.api import (
    admission,
    meta,
    operations,
    probe,
    problems,
    replay,
    replay_batch,
    upgrade,
    validate,
)
from app.api.context import RequestContext
from app.api.document import Service
from app.api.methods import other_methods
from app.api.metrics import GateMetrics
from app.api.proxy import RequestGate, relay_routes
from app.api.replay_workers import ProcessWorkers
from app.api.state import Gates
from app.catalogue import CatalogueLibrary
from app.errors import UnusableInput
from app.model_facts import configs_of
from app.relay.dispatch import RelayFirst, own_segments
from app.settings import Settings, read_settings
from app.telemetry.registry import MetricsRegistry, shared_directory
from app.telemetry.tracing import make_tracing

_log = structlog.get_logger("vllm_admission")

_DESCRIPTION: Final = (
    "Three gates around a vLLM backend. **Configuration**: would `vllm serve` accept this? "
    "**Request**: every other path is checked against the admitted configuration and relayed to "
    "the backend. **Replay**: is this response what the engine drew?"
)
_PUBLISH_SECONDS: Final = 1.0


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the service.

    Args:
        settings: read from the environment if not given.

    Raises:
        CatalogueError: the catalogue directory of the settings is unusable.
        UnusableInput: a setting cannot be used, such as tracing without OpenTelemetry.
    """
    settings = settings or read_settings()
    library = CatalogueLibrary(settings.catalogue_dir)
    _refuse_unknown_limits(settings, library)
    admitted = admit(settings, library)
    registry = MetricsRegistry()
    metrics = GateMetrics(registry, library)
    tracing = make_tracing() if settings.tracing else None
    gate = RequestGate(settings, library, admitted.config, registry, tracing)

    workers = ProcessWorkers(settings.replay_workers)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if admitted.reason is not None:  # /readyz fails for it, and rules that need it are silent
            _log.error("the configuration is not admitted", reason=admitted.reason)
        await gate.start()
        publisher = asyncio.create_task(_publish(registry)) if shared_directory() else None
        try:
            yield
        finally:
            if publisher is not None:
                publisher.cancel()
            await gate.aclose()
            await workers.aclose()
            if tracing is not None:
                await run_in_threadpool(tracing.close)

    app = Service(
        title="vllm-admission",
        summary="Configuration, request and replay gates in front of vLLM",
        description=_DESCRIPTION,
        version=operations.service_version(),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
    )
    app.state.gates = Gates(
        settings, configs_of(settings), library, admitted, gate, metrics, registry, workers
    )
    problems.install(app)
    for module in (validate, upgrade, admission, replay, replay_batch, probe, meta, operations):
        app.include_router(module.router)
        app.router.routes.extend(other_methods(module.router.routes))
    own = own_segments(app.router.routes)
    app.router.routes.extend(relay_routes(gate))
    relay_first = RelayFirst(app.answer, relay=gate, own=own)
    app.front = RequestContext(relay_first, settings.access_log, tracing)
    return app


def _refuse_unknown_limits(settings: Settings, library: CatalogueLibrary) -> None:
    known = {d for v in library.versions for d in library.get(v).by_dest} if settings.limits else ()
    for name in settings.limits:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UnusableInput(f"VLLM_ADMISSION_LIMITS: no version has a setting {name!r}{hint}")


async def _publish(registry: MetricsRegistry) -> None:
    """Let the other workers know, again and again, what our gauges show."""
    while True:
        registry.publish()
        await asyncio.sleep(_PUBLISH_SECONDS)
