"""docs/operations.md lists what is exported, no more and no less."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from app.main import create_app
from app.settings import Settings

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"


def exported() -> list[str]:
    """Give the rows of the table, from the registry."""
    registry = create_app(Settings.model_construct()).state.gates.registry
    rows = []
    for collector in set(registry._collector_to_names):
        assert isinstance(collector, MetricWrapperBase)
        suffix = "_total" if collector._type == "counter" else ""
        labels = ", ".join(f"`{name}`" for name in collector._labelnames)
        rows.append(
            f"| `{collector._name}{suffix}` | {collector._type} | {labels} "
            f"| {collector._documentation} |"
        )
    return sorted(rows)


def test_the_page_lists_every_metric_as_it_is() -> None:
    listed = [line for line in PAGE.read_text().splitlines() if line.startswith("| `vllm_")]
    assert listed == exported()
