"""What the relay counts. Labels are bounded: routes and rules of a fixed list, never a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_OVERHEAD_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)


class RelayMetrics:
    """The request gate's instruments in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them; a registry takes one set only."""
        self._requests = Counter(
            "vllm_admission_proxy_requests",
            "Relayed requests by route and how they ended: the backend's status class, refused "
            "by a rule, a fault's name, client-left, or cut (broken off by the backend).",
            ["route", "outcome"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "vllm_admission_proxy_in_flight",
            "Requests between their first byte in and their last byte out.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.queued = Gauge(
            "vllm_admission_proxy_queue_depth",
            "Requests that wait until fewer are in flight.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.sockets = Gauge(
            "vllm_admission_proxy_websockets",
            "Open WebSockets.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._overhead = Histogram(
            "vllm_admission_proxy_overhead_seconds",
            "Time that an answered request's own task ran in this process, from its header to "
            "the answer's last byte; waiting for the backend or the client is not in it.",
            ["route"],
            buckets=_OVERHEAD_BUCKETS,
            registry=registry,
        )
        self._waited = Histogram(
            "vllm_admission_proxy_upstream_ttfb_seconds",
            "From sending the request until the backend's response header.",
            ["route"],
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._departures = Counter(
            "vllm_admission_proxy_client_disconnects",
            "Clients that left early, by phase: queue, request-body, waiting, response.",
            ["phase"],
            registry=registry,
        )
        self._findings = Counter(
            "vllm_admission_request_findings",
            "Findings of request rules.",
            ["rule", "severity"],
            registry=registry,
        )
        self._crashes = Counter(
            "vllm_admission_request_rule_crashes",
            "Request rules that crashed; the request was relayed as if they had said nothing.",
            ["rule"],
            registry=registry,
        )

        self._seeds = Counter(
            "vllm_admission_seed_injections",
            "Requests without a seed: injected, or left where the body allows none.",
            ["route", "outcome"],
            registry=registry,
        )
        # Looking a series up by its labels costs more than counting.
        self._ended: dict[tuple[str, str], Counter] = {}
        self._times: dict[str, tuple[Histogram, Histogram]] = {}

    def seeded(self, route: str, *, injected: bool) -> None:
        """Count a request that lacked a seed."""
        self._seeds.labels(route, "injected" if injected else "left").inc()

    def ended(self, route: str, outcome: str) -> None:
        """Count one exchange."""
        series = self._ended.get((route, outcome))
        if series is None:
            series = self._ended[route, outcome] = self._requests.labels(route, outcome)
        series.inc()

    def answered(self, route: str, *, own: float, waited: float) -> None:
        """Record the times of an exchange whose response header came, in seconds."""
        series = self._times.get(route)
        if series is None:
            series = self._overhead.labels(route), self._waited.labels(route)
            self._times[route] = series
        series[0].observe(own)
        series[1].observe(waited)

    def left(self, phase: str) -> None:
        """Count a client that left."""
        self._departures.labels(phase).inc()

    def found(self, findings: Iterable[tuple[str, str]]) -> None:
        """Count findings, given as (rule, severity)."""
        for rule, severity in findings:
            self._findings.labels(rule, severity).inc()

    def crashed(self, rules: Iterable[str]) -> None:
        """Count rules that crashed."""
        for rule in rules:
            self._crashes.labels(rule).inc()


class FleetMetrics:
    """How the backends are; their URLs are of a fixed list too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the instruments; a registry takes one set only."""
        self._healthy = Gauge(
            "vllm_admission_backend_healthy",
            "1 while the circuit breaker is closed and /health, where it is asked for, is fine.",
            ["backend"],
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._opened = Counter(
            "vllm_admission_backend_breaker_openings",
            "How often the circuit breaker opened.",
            ["backend"],
            registry=registry,
        )
        self._retries = Counter(
            "vllm_admission_backend_retries",
            "Requests sent again, or elsewhere, after no connection to this backend was had.",
            ["backend"],
            registry=registry,
        )

    def healthy(self, backend: str, healthy: bool) -> None:
        """Set whether a backend is thought to answer."""
        self._healthy.labels(backend).set(healthy)

    def opened(self, backend: str) -> None:
        """Count a breaker that opened."""
        self._opened.labels(backend).inc()

    def retried(self, backend: str) -> None:
        """Count an attempt that failed and is made again."""
        self._retries.labels(backend).inc()


class DriftMetrics:
    """Whether backends are as declared; fields are those of a fixed list of settings."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the instruments; a registry takes one set only."""
        self._drift = Gauge(
            "vllm_admission_drift",
            "1 while this field of the backend differs from the declared configuration.",
            ["backend", "field"],
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._comparisons = Counter(
            "vllm_admission_drift_comparisons",
            "Comparisons of a backend with the declared configuration: same, differs, or "
            "unreachable.",
            ["backend", "outcome"],
            registry=registry,
        )

    def compared(self, backend: str, outcome: str) -> None:
        """Count one comparison."""
        self._comparisons.labels(backend, outcome).inc()

    def found(self, backend: str, differing: Iterable[str], before: Iterable[str]) -> None:
        """Set which fields differ now, where those of `before` did."""
        for field in before:
            self._drift.labels(backend, field).set(0)
        for field in differing:
            self._drift.labels(backend, field).set(1)


class InlineMetrics:
    """The instruments of inline replays; verdicts are of a fixed list too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them; a registry takes one set only."""
        self._replays = Counter(
            "vllm_admission_inline_replays",
            "Generations chosen, or asked, to be replayed: by the report's verdict, unusable, "
            "failed, or skipped and why.",
            ["verdict"],
            registry=registry,
        )
        self._rows = Counter(
            "vllm_admission_inline_replay_rows",
            "Rows (generated tokens) replayed inline, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._kept = Gauge(
            "vllm_admission_inline_replay_buffer_bytes",
            "Bytes kept for inline replays.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._waiting = Gauge(
            "vllm_admission_inline_replay_waiting",
            "Exchanges that wait to be replayed, or are being.",
            multiprocess_mode="livesum",
            registry=registry,
        )

    def watch(self, kept: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Take the gauges' values from these."""
        self._kept.set_function(kept)
        self._waiting.set_function(waiting)

    def ended(self, verdict: str, rows: Mapping[str, int]) -> None:
        """Count one outcome and its rows."""
        self._replays.labels(verdict).inc()
        for outcome in ("exact", "mismatch", "undecidable"):
            self._rows.labels(outcome).inc(rows.get(outcome, 0))
