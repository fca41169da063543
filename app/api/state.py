"""What the endpoints share: made once by `create_app`, reached through the request."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from app.admitted import Admitted
from app.api.metrics import GateMetrics
from app.api.proxy import RequestGate
from app.api.replay_workers import ReplayWorkers
from app.catalogue import CatalogueLibrary
from app.model_facts import ModelConfigs
from app.settings import Settings
from app.telemetry.registry import MetricsRegistry


@dataclass(frozen=True, slots=True)
class Gates:
    """The three gates and what they stand on.

    `replay_workers` run replays beside the event loop, in processes.
    """

    settings: Settings
    model_configs: ModelConfigs
    library: CatalogueLibrary
    admitted: Admitted
    request_gate: RequestGate
    metrics: GateMetrics
    registry: MetricsRegistry
    replay_workers: ReplayWorkers


def gates_of(request: Request) -> Gates:
    """Give the gates of the application that handles `request`."""
    gates = request.app.state.gates
    if not isinstance(gates, Gates):
        raise TypeError("the application was not made by create_app")
    return gates
