from __future__ import annotations

import httpx
import pytest
from prometheus_client import Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from app.main import create_app
from app.settings import Settings
from app.telemetry.registry import MetricsRegistry
from tests.support import client_of

OPEN = "application/openmetrics-text; version=1.0.0"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "text/plain"),
        ("", "text/plain"),
        (OPEN, "application/openmetrics-text"),
        (f"{OPEN};q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", "application/openmetrics-text"),
    ],
)
async def test_the_format_is_negotiated(accept: str, media_type: str) -> None:
    async with client_of(create_app(Settings())) as client:
        answer = await client.get("/metrics", headers={"accept": accept})
    assert answer.headers.get_list("content-type")[0].startswith(f"{media_type};")
    assert len(answer.headers.get_list("content-type")) == 1
    assert answer.text.endswith("# EOF\n") == ("openmetrics" in media_type)


@pytest.mark.asyncio
async def test_openmetrics_text_is_valid_and_in_base_units() -> None:
    async with client_of(create_app(Settings())) as client:
        answer: httpx.Response = await client.get("/metrics", headers={"accept": OPEN})
    families = list(text_string_to_metric_families(answer.text))  # type: ignore[no-untyped-call]  # untyped upstream
    assert {f.name for f in families} >= {"vllm_admission_catalogue_info"}
    assert all(f.name.startswith("vllm_admission_") for f in families)


def test_a_gauge_that_follows_a_function_is_written_down() -> None:
    registry = MetricsRegistry()
    depth = Gauge("depth", "How deep.", registry=registry)
    by_name = Gauge("by_name", "Each.", ["name"], registry=registry)
    now = {"depth": 3.0}
    depth.set_function(lambda: now["depth"])
    by_name.labels("a").set(7)
    registry.publish()
    del depth.__dict__["_child_samples"]  # the function; what is left was written down
    assert registry.get_sample_value("depth") == 3
    assert registry.get_sample_value("by_name", {"name": "a"}) == 7


def test_every_gauge_says_what_several_workers_make_of_it() -> None:
    registry = create_app(Settings()).state.gates.registry
    gauges = registry._gauges
    assert gauges
    undecided = [g._name for g in gauges if g._multiprocess_mode == "all"]
    assert undecided == [], "they would have a `pid` label: give them a multiprocess_mode"
