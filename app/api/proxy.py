"""The request gate: every route of the backend that is not ours, checked and relayed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import structlog
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from app.catalogue import CatalogueLibrary
from app.errors import InvalidEnvelope
from app.model_facts import Unavailable, configs_of, generation_config
from app.relay.breaker import BreakerLimits
from app.relay.capacity import CapacityLimits
from app.relay.client import BodyLimits
from app.relay.drift.monitor import Declared, DriftMonitor
from app.relay.examining import ExaminationProcess
from app.relay.fleet import Fleet, RetryLimits, Upstream
from app.relay.health import HealthMonitor
from app.relay.inline.facts import ReplayFacts, replay_facts
from app.relay.inline.verifier import InlineLimits, InlineVerifier
from app.relay.inline.worker import ProcessWorker
from app.relay.metrics import DriftMetrics, FleetMetrics, InlineMetrics, RelayMetrics
from app.relay.relay import Pace, Relay
from app.relay.upstream import Backend, base_urls
from app.relay.websocket import SocketLimits
from app.replay.evidence import ReplayOptions
from app.request_rules import keys
from app.request_rules.checker import RequestChecker
from app.request_rules.declarations import RULES
from app.request_rules.limits import Limits
from app.request_rules.policy import Policy, read_actions
from app.request_rules.served import Served, served_by, unknown_server
from app.serve_config.serve_config import ServeConfig
from app.settings import Settings
from app.telemetry.tracing import Tracing
from app.telemetry.upstream import TracedUpstream

_log = structlog.get_logger("vllm_admission.relay")

# A vLLM that was told to end has ended by then, or is what the kubelet restarts in our pod.
RESUME_SECONDS = 60.0
# Own pages are registered first; what is left belongs to the backend.
EVERYTHING_ELSE = "/{path:path}"


class RequestGate:
    """Checks requests against the admitted configuration and relays them.

    An ASGI application. `start()` runs inside the event loop before the first request; until
    then, and without a backend URL, every request is answered with 503.
    """

    def __init__(
        self,
        settings: Settings,
        library: CatalogueLibrary,
        config: ServeConfig | None,
        registry: CollectorRegistry,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare for the backend of `settings`; `config` is what it was started with.

        Raises:
            InvalidEnvelope: the backend URL is none, a setting about request rules is wrong, or
                settings contradict each other.
        """
        self._settings = settings
        self._tracing = tracing
        self._urls = _backend_urls(settings)
        self.served = _served(settings, library, config)
        policy = _policy(settings)
        self._apart = ExaminationProcess(self.served, policy, inject_seeds=settings.inject_seed)
        checker = RequestChecker(
            self.served,
            on_crash=_report_crash,
            inject_seeds=settings.inject_seed,
            policy=policy,
            apart=self._apart,
            prefixes={url.path.rstrip("/") for url in self._urls},
        )
        limits = BodyLimits(
            settings.max_request_bytes,
            settings.request_body_grace,
            settings.request_body_min_rate,
        )
        self.facts = _facts(settings, self.served, config)
        self.probing = False
        self._inline_metrics = InlineMetrics(registry)
        self._fleet_metrics = FleetMetrics(registry)
        self._relay = Relay(
            None,
            checker,
            RelayMetrics(registry),
            limits,
            capacity=CapacityLimits(
                settings.max_in_flight, settings.max_queue, settings.queue_timeout
            ),
            pace=Pace(settings.write_timeout, settings.max_stream_seconds),
            sockets=SocketLimits(settings.max_websocket_bytes, settings.write_timeout),
        )
        self._ending = False
        self._ending_for_good = False
        self._draining: asyncio.Task[None] | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._config = config
        self._drift_metrics = DriftMetrics(registry)
        self._drift: DriftMonitor | None = None
        self._health: HealthMonitor | None = None
        self._watching: list[asyncio.Task[None]] = []

    @property
    def backend(self) -> Upstream | None:
        """The client side, while it is open."""
        return self._relay.backend

    @property
    def checks(self) -> dict[str, str | None]:
        """What readiness asks: each check by name, with the reason where it fails."""
        checks = {"not-draining": "the server is about to end" if self._ending else None}
        if self._settings.drift_is_unready and self._drift is not None:
            checks["no-drift"] = "; ".join(self._drift.remarks) if self._drift.drifted else None
        if self._settings.unready_without_backend:
            checks["backend"] = self._health.absence if self._health else "not asked yet"
        return checks

    @property
    def remarks(self) -> list[str]:
        """What is worth saying beside the checks: how the backends differ from the declared."""
        return [] if self._drift is None else self._drift.remarks

    async def drain(self) -> None:
        """Let requests in flight end, after readiness has failed for a while; for the end."""
        self._ending_for_good = True
        await self._drain()

    async def pause(self) -> None:
        """Drain for a neighbour in the pod that is about to end.

        The kubelet asks for that too where it restarts the neighbour alone, and will not restart
        us: if our own end has not come after `RESUME_SECONDS`, requests are taken again.
        """
        await self._drain()
        if self._resuming is not None:
            self._resuming.cancel()
        self._resuming = asyncio.get_running_loop().call_later(RESUME_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self._ending_for_good:
            self._ending = False
            self._draining = None
            self._relay.resume()
            _log.info("taking requests again", seconds_after_drain=RESUME_SECONDS)

    async def _drain(self) -> None:
        """Drain once, whoever asks: both ports do when the process ends, one after the other."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drained())
        await asyncio.shield(self._draining)

    async def _drained(self) -> None:
        self._ending = True
        await asyncio.sleep(self._settings.drain_delay)
        await self._relay.drain(self._settings.drain_seconds)

    async def start(self) -> None:
        """Open the client side, inside the running event loop."""
        if self._urls:
            self._relay.verifier = InlineVerifier(
                self.facts,
                InlineLimits(
                    sample=self._settings.replay_sample,
                    buffer_bytes=self._settings.replay_buffer_bytes,
                    queue=self._settings.replay_queue,
                    wait=self._settings.replay_wait,
                ),
                self._inline_metrics,
                ProcessWorker(),
            )
            fleet = self._fleet()
            self._watch_health(fleet)
            self._watch_drift(fleet)
            self._relay.backend = (
                fleet if self._tracing is None else TracedUpstream(fleet, self._tracing)
            )

    def _watch_health(self, fleet: Fleet) -> None:
        interval = self._settings.health_interval
        if interval and (len(fleet.members) > 1 or self._settings.unready_without_backend):
            self._health = HealthMonitor(fleet, interval, self._settings.connect_timeout)
            self._watching.append(asyncio.create_task(self._health.run()))

    def _watch_drift(self, fleet: Fleet) -> None:
        version = self._config.catalogue.vllm_version if self._config else None
        declared = Declared(version or self._settings.vllm_version, self._config)
        if self._settings.drift_interval and declared.version is not None:
            self._drift = DriftMonitor(
                fleet.members, declared, self._settings.drift_interval, self._drift_metrics
            )
            self._watching.append(asyncio.create_task(self._drift.run()))

    def _fleet(self) -> Fleet:
        settings = self._settings
        return Fleet(
            [
                Backend(
                    str(url),
                    connect_timeout=settings.connect_timeout,
                    idle_timeout=settings.idle_timeout,
                )
                for url in self._urls
            ],
            BreakerLimits(
                settings.breaker_failures,
                settings.breaker_open_seconds,
                settings.breaker_successes,
            ),
            RetryLimits(settings.connect_retries),
            self._fleet_metrics,
        )

    async def aclose(self) -> None:
        """Close every connection to the backend, and end inline replays."""
        backend, self._relay.backend = self._relay.backend, None
        verifier, self._relay.verifier = self._relay.verifier, None
        watching, self._watching = self._watching, []
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)
        if backend is not None:
            await backend.aclose()
        if verifier is not None:
            await verifier.aclose()
        await self._apart.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request or WebSocket."""
        await self._relay(scope, receive, send)


def relay_routes(gate: RequestGate) -> list[BaseRoute]:
    """Give the routes to register after all of our own, for every method."""
    return [Route(EVERYTHING_ELSE, gate, include_in_schema=False)]


def _backend_urls(settings: Settings) -> list[httpx.URL]:
    if settings.unready_without_backend and not (settings.backend_url and settings.health_interval):
        raise InvalidEnvelope(
            "VLLM_ADMISSION_UNREADY_WITHOUT_BACKEND: the service would never be ready: it needs "
            "VLLM_ADMISSION_BACKEND_URL, and a VLLM_ADMISSION_HEALTH_INTERVAL that is not 0"
        )
    if settings.backend_url is None:
        return []
    try:
        return base_urls(settings.backend_url)
    except ValueError as error:
        raise InvalidEnvelope(f"VLLM_ADMISSION_BACKEND_URL: {error}") from error


def _served(settings: Settings, library: CatalogueLibrary, config: ServeConfig | None) -> Served:
    if config is not None:
        return served_by(config, _generation_config(config, settings))
    return unknown_server(library.get(settings.vllm_version or library.newest))


def _generation_config(config: ServeConfig, settings: Settings) -> Mapping[str, Any] | None:
    try:
        return generation_config(config, configs_of(settings))
    except Unavailable as reason:
        _log.info("the model's generation_config.json is not known", reason=str(reason))
        return None


def _policy(settings: Settings) -> Policy:
    strict = (keys.unknown.declaration.id,) if settings.request_strict else ()
    return Policy(
        read_actions(settings.request_rules, RULES, strict=strict),
        Limits(
            prompt_logprobs=settings.request_max_prompt_logprobs,
            bad_word_bytes=settings.request_max_bad_word_bytes,
            characters_per_token=settings.request_characters_per_token,
            repair_top_k=settings.request_repair_top_k,
        ),
    )


def _facts(settings: Settings, served: Served, config: ServeConfig | None) -> ReplayFacts | None:
    """What replays go by; None where not even the version was told."""
    if config is not None:
        return replay_facts(config, served)
    if settings.vllm_version is None:
        return None
    return ReplayFacts(settings.vllm_version, ReplayOptions())


def _report_crash(rule: str, error: Exception) -> None:
    _log.error("request rule crashed", rule=rule, error=f"{type(error).__name__}: {error}")
