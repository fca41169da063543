"""Where metrics are kept, and how they are told: of this process, or of all workers together.

In multi-process mode every worker writes its values into files of a directory that the
supervisor made, and any worker answers `/metrics` with the sum of all files. A worker's files
carry its number, not its process id, so that a worker that was replaced goes on counting where
it was broken off, and files do not add up.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, values
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

# The variable's name is prometheus_client's; it reads it whenever a value is made.
_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"


class MetricsRegistry(CollectorRegistry):
    """A registry that can write its gauges down for other workers to read.

    A gauge that follows a function has no value of its own between two readings.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._gauges: list[Gauge] = []
        super().__init__()

    def register(self, collector: Collector) -> None:
        """Take a collector on."""
        super().register(collector)
        if isinstance(collector, Gauge):
            self._gauges.append(collector)

    def publish(self) -> None:
        """Write down what the gauges show at the moment."""
        for gauge in self._gauges:
            for metric in gauge.collect():
                for sample in metric.samples:
                    held = gauge.labels(**sample.labels) if sample.labels else gauge
                    held.set(sample.value)


def exposition(registry: MetricsRegistry, accept: str) -> tuple[bytes, str]:
    """Write all metrics in the format that `accept` asks for; gives it and its media type.

    Prometheus's text format unless OpenMetrics is asked for.
    """
    encode, media_type = choose_encoder(accept)
    directory = shared_directory()
    if directory is None:
        return encode(registry), media_type
    registry.publish()
    everyone = CollectorRegistry()
    MultiProcessCollector(everyone, directory)  # type: ignore[no-untyped-call]  # untyped upstream
    return encode(everyone), media_type


def shared_directory() -> str | None:
    """Where the workers' files are; None with a single process."""
    return os.environ.get(_DIRECTORY)


def share_metrics(worker: int, directory: str) -> None:
    """Keep the values of metrics that are made from now on in files, under a worker's number."""
    os.environ[_DIRECTORY] = directory
    values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]  # untyped upstream
        lambda: worker
    )


def forget_gauges(worker: int, directory: Path) -> None:
    """Drop what a worker that ended had in flight; its counts stay."""
    mark_process_dead(worker, str(directory))  # type: ignore[no-untyped-call]  # untyped upstream


@contextmanager
def metrics_directory() -> Iterator[Path]:
    """A directory for the files, readable by nobody else, gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="vllm-admission-metrics-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
