"""Values of charts in the objects that have them installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.support import container
from tests.kubernetes.test_kinds import object_of, servers, verdict_of, words


def release(controllers: Any, **values: Any) -> dict[str, Any]:
    spec = {"values": {"controllers": controllers, **values}}
    return object_of("helm.toolkit.fluxcd.io/v2", "HelmRelease", spec)


def app(**members: Any) -> dict[str, Any]:
    return {
        "main": {"containers": {"app": {"image": {"repository": "vllm/vllm-openai"}, **members}}}
    }


def test_variables_of_a_mapping_are_those_of_the_container() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = {
        "PORT": 8001,
        "VLLM_USE_V2_MODEL_RUNNER": True,
        "A": None,
        "HF_TOKEN": {"valueFrom": secret},
    }
    [server] = servers(release(app(args=["m", "--port", "$(PORT)"], env=env)))
    assert server.subject == "HelmRelease/o main app"
    assert [word.text for word in server.words] == ["m", "--port", "8001"]
    found = {name: variable.value for name, variable in server.environment.items()}
    assert found["VLLM_USE_V2_MODEL_RUNNER"] == "true"
    assert found["A"] == ""
    assert server.environment["HF_TOKEN"].unresolved == ("HF_TOKEN",)
    assert not any(finding.rule == "kubernetes-not-a-string" for finding in server.findings)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"args": "m --seed 1", "command": ["sh", "-c"]}, []),
        ({"args": "vllm serve m --seed 1", "command": ["sh", "-c"]}, [["m", "--seed", "1"]]),
        ({"args": ["vllm serve m"], "command": ["sh", "-c"]}, [["m"]]),
        ({"args": ["m"], "image": {"repository": "vllm/vllm-openai", "tag": "v0.32.0"}}, [["m"]]),
        ({"args": ["m"], "image": {"repository": "other/thing"}}, []),
        ({"args": ["m"], "image": "odd"}, []),
    ],
)
def test_what_a_container_of_a_mapping_starts(
    members: dict[str, Any], expected: list[list[str]]
) -> None:
    assert words(release(app(**members))) == expected


def test_probes_and_the_pod_are_the_charts() -> None:
    probe = {"custom": True, "spec": {"httpGet": {"port": 9000, "path": "/health"}}}
    found = app(args=["m"], probes={"liveness": probe, "readiness": {"enabled": False}})
    options = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}}
    [server] = servers(release(found, defaultPodOptions=options))
    assert server.hardware is not None
    assert server.hardware.gpu == "NVIDIA-L4"
    told = {finding.rule for finding in verdict_of(server).findings}
    assert "kubernetes-probe-port" in told
    assert "kubernetes-readiness-missing" not in told


@pytest.mark.parametrize(
    "controllers",
    [None, [], {"main": None}, {"main": {"containers": []}}, {"main": {"containers": {"app": 1}}}],
)
def test_odd_values_have_no_server(controllers: Any) -> None:
    assert servers(release(controllers)) == ()


def test_values_of_other_charts_are_searched_as_any_kind_is() -> None:
    assert words(release(None, extra={"containers": [container(["m"])]})) == [["m"]]
