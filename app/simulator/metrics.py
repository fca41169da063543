"""The engine's counters as Prometheus text, under vLLM's names.

Source: `vllm/v1/metrics/loggers.py::PrometheusStatLogger`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from app.simulator.engine import Engine


class _EngineCollector:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine = self._engine
        model = engine.settings.model_name
        labels, values = ("model_name", "engine"), (model, "0")
        for name, text, value in (
            ("num_requests_running", "Requests being generated.", engine.running),
            ("num_requests_waiting", "Requests waiting for a place.", engine.waiting),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=labels)
            gauge.add_metric(values, value)
            yield gauge
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens processed.", engine.prompt_tokens),
            ("generation_tokens", "Tokens generated.", engine.generated_tokens),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=labels)
            counter.add_metric(values, value)
            yield counter
        success = CounterMetricFamily(
            "vllm:request_success", "Ended sequences.", labels=(*labels, "finished_reason")
        )
        for reason in ("stop", "length", "abort"):
            success.add_metric((*values, reason), engine.finished[reason])
        yield success
        yield InfoMetricFamily(
            "vllm:simulator",
            "The simulated version.",
            value={"vllm_version": engine.settings.vllm_version},
        )


def exposition(engine: Engine) -> tuple[bytes, str]:
    """Give the metrics in the text format, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineCollector(engine))
    return generate_latest(registry), CONTENT_TYPE_LATEST
