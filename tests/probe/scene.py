"""A simulated backend to probe, and the probe itself, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.probe.plan import ProbeOptions
from app.probe.report import ProbeReport
from app.probe.run import probe
from app.relay.upstream import Backend
from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings
from tests.support import serving

SMALL = ProbeOptions(requests=8, max_tokens=8, concurrency=4, prompt_lengths=(1, 9))


async def probe_app(app: Any, options: ProbeOptions = SMALL, **more: Any) -> ProbeReport:
    async with serving(app) as url:
        return await probe_url(url, options, **more)


async def probe_url(url: str, options: ProbeOptions = SMALL, **more: Any) -> ProbeReport:
    backend = Backend(url, connect_timeout=2, idle_timeout=10)
    try:
        return await probe(backend, options, **more)
    finally:
        await backend.aclose()


def simulator(wrap: Callable[[Any], Any] = lambda app: app, **settings: Any) -> Any:
    return wrap(create_simulator(SimulatorSettings(**settings)))
