from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from app.api.metrics import GateMetrics
from app.catalogue import CatalogueLibrary
from app.main import create_app
from app.proposal.shell import parse_command
from app.rules.evaluate import validate
from app.rules.registry import Registry, rule
from app.serve_config.serve_config import ServeConfig
from app.settings import Settings
from app.verdict.finding import Finding, Severity
from tests.support import client_of


@rule(
    id="test-crash",
    title="A rule that crashes",
    explanation="It has a bug.",
    remedy="None.",
    severity=Severity.ERROR,
    area="test",
    source="here",
)
def crashing(config: ServeConfig) -> Iterator[Finding]:
    facts: dict[str, list[Finding]] = {}
    yield from facts[config.catalogue.vllm_version]


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_a_rule_that_crashes_is_counted_and_refuses_nothing() -> None:
    library = CatalogueLibrary()
    registry = CollectorRegistry()
    metrics = GateMetrics(registry, library)
    verdict = validate(
        parse_command("vllm serve m"),
        library.get("0.32.0"),
        registry=Registry((crashing,)),
        on_crash=metrics.crashed,
    )
    assert verdict.accepted
    assert [f.rule for f in verdict.findings] == ["internal-rule-error"]
    assert value(registry, "vllm_admission_rule_crashes_total", rule="test-crash") == 1


@pytest.mark.asyncio
async def test_verdicts_and_findings_are_counted() -> None:
    app = create_app(Settings(vllm_version="0.32.0"))
    async with client_of(app) as client:
        for _ in range(2):
            await client.post("/validate", content="vllm serve m --return-sampling-mask")
    registry = app.state.gates.registry
    rejected = {"vllm_version": "0.32.0", "verdict": "rejected"}
    assert value(registry, "vllm_admission_verdicts_total", **rejected) == 2
    found = {"rule": "sampling-mask-logprobs-mode", "severity": "error"}
    assert value(registry, "vllm_admission_findings_total", **found) == 2
    assert value(registry, "vllm_admission_catalogue_info", vllm_version="0.28.0") == 1
    timed = value(registry, "vllm_admission_duration_seconds_count", gate="configuration")
    assert timed == 2


def test_reviews_are_counted_with_operations_of_a_fixed_list() -> None:
    registry = CollectorRegistry()
    metrics = GateMetrics(registry, CatalogueLibrary())
    metrics.reviewed("CREATE", "denied", 0.002)
    metrics.reviewed("x" * 500, "allowed", 0.001)
    denied = {"operation": "CREATE", "decision": "denied"}
    assert value(registry, "vllm_admission_reviews_total", **denied) == 1
    other = {"operation": "OTHER", "decision": "allowed"}
    assert value(registry, "vllm_admission_reviews_total", **other) == 1
    assert value(registry, "vllm_admission_review_duration_seconds_count") == 2
