"""Whatever stands in an object, a review of it is answered and no rule crashes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import AdmissionError
from app.kubernetes.manifest import Path
from app.kubernetes.mode import Mode
from app.kubernetes.read import read_kubernetes
from app.proposal.envelope import Envelope
from app.validation import judge
from app.verdict.verdict import Verdict
from tests.kubernetes.resources import RESOURCES
from tests.kubernetes.support import LIBRARY, answered, container, patch_of, patched, pod, review
from tests.kubernetes.test_kinds import KSERVE, KUBEAI, RAY, RUNTIME, STACK

PROBE = {"httpGet": {"path": "/health", "port": 8000}, "failureThreshold": 3}
TRANSFER = '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'
FULL = pod(
    container(
        ["m", "-tp", "2", "--api-key", "$(K)", "--kv-transfer-config", TRANSFER],
        env=[
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "HF_TOKEN", "value": "t"},
        ],
        envFrom=[{"prefix": "P", "configMapRef": {"name": "c"}}],
        resources={"limits": {"nvidia.com/gpu": "2"}, "requests": {"cpu": 1}},
        startupProbe=PROBE,
        livenessProbe=PROBE,
        readinessProbe=PROBE,
        lifecycle={"preStop": {"sleep": {"seconds": 3}}},
        ports=[{"name": "http", "containerPort": 8000}],
        volumeMounts=[{"name": "v", "mountPath": "/dev/shm"}],  # noqa: S108 - in the container
    ),
    container(["serve", "x"], name="second", command=["sh", "-c", "vllm serve $0"]),
    annotations={"vllm-admission/ignore": "a: b", "vllm-admission/vllm-version": "0.32.0"},
)
FULL["spec"]["volumes"] = [
    {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    {"name": "c", "configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}},
]
BASES = [FULL, KSERVE, KUBEAI, RUNTIME, yaml.safe_load(RAY), yaml.safe_load(STACK)]
BASES += map(yaml.safe_load, RESOURCES.values())


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, member in items:
        yield from paths(member, (*path, key))


PLACES = [(base, path) for base in BASES for path in paths(base)]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10**20),
    st.floats(allow_nan=False),
    st.sampled_from(["", "$(", "$(K)", "vllm serve", "'", "a\nb", "{", "\x00", "8Gi", "é" * 99]),
    st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=2),
)


def changed(base: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    found: Any = copy.deepcopy(base)
    holder: Any = found
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    result: dict[str, Any] = found
    return result


def unfailing(envelope: Envelope) -> tuple[Verdict, ...]:
    verdicts = judge(envelope, LIBRARY, "0.32.0", crash)
    assert all(verdict.sources is not None for verdict in verdicts)
    return verdicts


def crash(rule: str, error: Exception) -> None:
    raise AssertionError(rule) from error


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), ODD)
def test_no_value_anywhere_breaks_a_review(place: tuple[dict[str, Any], Path], value: Any) -> None:
    subject = changed(*place, value)
    assert answered(review(subject), Mode.WARN, unfailing)["allowed"] is True
    patch = patch_of(review(subject), unfailing)
    if patch:
        mended = patched(subject, patch)
        assert answered(review(mended), Mode.ENFORCE, unfailing)["allowed"] is True
        assert patch_of(review(mended), unfailing) == []
    with suppress(AdmissionError):  # no server is left, or one of a version that is not known
        for server in read_kubernetes(yaml.safe_dump(subject)):
            unfailing(Envelope(proposal=server))


@pytest.mark.parametrize("member", ["args", "command", "env"])
@pytest.mark.parametrize("count", [10_000, 10_001])
def test_a_list_beyond_all_reason_is_not_read(member: str, count: int) -> None:
    held: list[Any] = ["--enforce-eager"] * count
    if member == "env":
        held = [{"name": f"A{i}", "value": "1"} for i in range(count)]
    answer = answered(review(pod({**container(["m"]), member: held})))
    told = f"/spec/containers/0/{member} has {count} items; at most 10000 are read"
    warnings = " ".join(answer.get("warnings", ()))
    assert (told in warnings) is (count > 10_000), warnings
    assert answer["allowed"] or count == 10_000
