"""GPUs that others use too: what the object says of it, and what the operator says."""

from __future__ import annotations

from typing import Any

import pytest

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of
from app.kubernetes.read import read_kubernetes
from app.proposal.envelope import Envelope, read_envelope
from app.proposal.proposal import Hardware, Proposal
from app.validation import judge
from app.verdict.verdict import Verdict
from tests.kubernetes.support import LIBRARY, container, deployment, pod
from tests.kubernetes.test_cases import CASES

RULES = {"memory-in-use", "kubernetes-gpu-share", "kubernetes-gpu-shared"}
HALF = ("--gpu-memory-utilization", "0.5")


def servers(*objects: dict[str, Any]) -> tuple[Proposal, ...]:
    return servers_in([manifest_of(data) for data in objects])


def verdict_of(server: Proposal) -> Verdict:
    [verdict] = judge(Envelope(proposal=server), LIBRARY, "0.32.0")
    assert not any(f.rule == "internal-rule-error" for f in verdict.findings)
    return verdict


def told(*objects: dict[str, Any]) -> list[str]:
    """Give the rules about shared GPUs that find something, of all servers."""
    found = [f.rule for server in servers(*objects) for f in verdict_of(server).findings]
    return [rule.removeprefix("kubernetes-") for rule in found if rule in RULES]


def serving(*args: str, limits: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    if limits is not None:
        members["resources"] = {"limits": limits}
    return container(["m", *args], **members)


def with_pod(
    server: dict[str, Any],
    spec: dict[str, Any],
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    subject = deployment(server)
    template = subject["spec"]["template"]
    template["spec"] |= spec
    template["metadata"] = {"annotations": annotations or {}, "labels": labels or {}}
    return subject


ONE = {"nvidia.com/gpu": "1"}
SHARED = {"nvidia.com/gpu.shared": "1"}
KAI = {"schedulerName": "kai-scheduler"}


@pytest.mark.parametrize(
    ("limits", "spec", "annotations", "args", "expected"),
    [
        (SHARED, {}, {}, (), True),
        (SHARED, {}, {}, HALF, False),
        (SHARED, {"nodeSelector": {"nvidia.com/gpu.replicas": "4"}}, {}, HALF, True),
        ({"nvidia.com/mig-2g.10gb.shared": "1"}, {}, {}, (), True),
        (ONE, {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}}, {}, (), True),
        (ONE, {"nodeSelector": {"nvidia.com/gpu.sharing-strategy": "time-slicing"}}, {}, (), True),
        (ONE, {"nodeSelector": {"nvidia.com/gpu.sharing-strategy": "none"}}, {}, (), False),
        (ONE, {"nodeSelector": {"nvidia.com/gpu.sharing-strategy": "mps"}}, {}, (), None),
        (
            ONE,
            {
                "nodeSelector": {
                    "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                    "cloud.google.com/gke-max-shared-clients-per-gpu": "3",
                }
            },
            {},
            HALF,
            True,
        ),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240"}, {}, {}, (), False),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"}, {}, {}, (), False),
        ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "10240"}, {}, {}, (), False),
        ({"nvidia.com/mig-1g.10gb": "1"}, {}, {}, (), False),
        ({"aliyun.com/gpu-mem": "8"}, {}, {}, (), True),
        ({"aliyun.com/gpu-mem": "8"}, {}, {}, HALF, None),
        (
            {"volcano.sh/gpu-memory": "8192"},
            {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}},
            {},
            HALF,
            False,
        ),
        (
            {"aliyun.com/gpu-mem": "5"},
            {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}},
            {},
            HALF,
            True,
        ),
        (None, KAI, {"gpu-fraction": "0.4"}, HALF, True),
        (None, KAI, {"gpu-fraction": "0.5"}, HALF, False),
        (None, KAI, {"gpu-memory": "4096"}, (), True),
        (None, {"schedulerName": "runai-scheduler"}, {"gpu-fraction": "0.4"}, HALF, None),
        (None, {}, {"gpu-fraction": "0.4"}, HALF, None),
        (ONE, {}, {"dual-pods.llm-d.ai/inference-server-config": "x"}, (), True),
        (ONE, {}, {}, (), False),
        (ONE, {}, {"vllm-admission/gpu-memory-in-use": "0.2"}, (), True),
        (ONE, {}, {"vllm-admission/gpu-memory-in-use": "20%"}, HALF, False),
        (SHARED, {}, {"vllm-admission/gpu-memory-in-use": "0.3"}, ("--enforce-eager",), True),
        (
            SHARED,
            {},
            {"vllm-admission/gpu-memory-in-use": "0.3"},
            ("--gpu-memory-utilization", "0.7"),
            False,
        ),
    ],
)
def test_a_gpu_that_other_pods_use_too(
    limits: dict[str, str] | None,
    spec: dict[str, Any],
    annotations: dict[str, str],
    args: tuple[str, ...],
    expected: bool | None,
) -> None:
    subject = with_pod(serving(*args, limits=limits), spec, annotations)
    assert bool(told(subject)) is bool(expected)
    [server] = servers(subject)
    open_rules = {skipped.rule for skipped in verdict_of(server).not_checked}
    assert ("kubernetes-gpu-share" in open_rules) is (expected is None)


def test_kai_is_known_by_its_queue_too() -> None:
    subject = with_pod(serving(), {}, {"gpu-fraction": "0.4"}, {"kai.scheduler/queue": "team"})
    assert told(subject) == ["gpu-share"]


@pytest.mark.parametrize(
    ("limits", "selector", "count", "gib"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10240}, {}, 1, 10.0),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": "4096"}, {}, 2, 4.0),
        ({"nvidia.com/mig-3g.20gb": 1}, {}, 1, 20.0),
        (
            {"nvidia.com/gpu": 1},
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"},
            1,
            5.0,
        ),
        ({"nvidia.com/gpu": 1}, {"cloud.google.com/gke-gpu-partition-size": "2g.10gb"}, 1, 10.0),
        ({"nvidia.com/gpu.shared": 1}, {}, 1, None),
        ({"aliyun.com/gpu-mem": 8}, {}, None, None),
        ({"nvidia.com/gpu": 2}, {}, 2, None),
    ],
)
def test_a_slice_has_memory_of_its_own(
    limits: dict[str, Any], selector: dict[str, str], count: int | None, gib: float | None
) -> None:
    [server] = servers(with_pod(serving(limits=limits), {"nodeSelector": selector}))
    hardware = server.hardware or Hardware()
    assert (hardware.count, hardware.memory_gib) == (count, gib)


def visible(devices: str, name: str = "NVIDIA_VISIBLE_DEVICES") -> list[dict[str, str]]:
    return [{"name": name, "value": devices}]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"env": visible("all")}, {"env": visible("0")}, True),
        ({"env": visible("0,1")}, {"env": visible("1,2")}, True),
        ({"env": visible("0")}, {"env": visible("1")}, False),
        ({"env": visible("none")}, {"env": visible("0")}, False),
        ({"env": visible("0", "CUDA_VISIBLE_DEVICES")}, {"env": visible("0")}, True),
        ({"env": visible("0")}, {}, False),
        ({}, {}, False),
        ({"limits": ONE}, {"limits": ONE}, False),
        ({"limits": ONE}, {}, True),
        ({"limits": SHARED}, {"limits": SHARED}, True),
        ({"resources": {"claims": [{"name": "g"}]}}, {"resources": {"claims": [{"name": "g"}]}}, 1),
        (
            {"resources": {"claims": [{"name": "g", "request": "a"}]}},
            {"resources": {"claims": [{"name": "g", "request": "b"}]}},
            False,
        ),
        ({"resources": {"claims": [{"name": "g"}]}}, {"resources": {"claims": [{"name": "h"}]}}, 0),
    ],
)
def test_servers_of_a_pod_on_one_gpu(
    first: dict[str, Any], second: dict[str, Any], expected: bool
) -> None:
    share = ("--gpu-memory-utilization", "0.55")
    subject = pod(serving(*share, **first), serving(*share, "--port", "8001", name="b", **second))
    assert ("gpu-shared" in told(subject)) is bool(expected)


def test_sleepers_take_turns() -> None:
    share = ("--gpu-memory-utilization", "0.9", "--enable-sleep-mode")
    subject = pod(
        serving(*share, limits=ONE), serving(*share, "--port", "8001", name="b", env=visible("0"))
    )
    [found] = [
        f for s in servers(subject) for f in verdict_of(s).findings if f.rule.endswith("shared")
    ]
    assert "one has to sleep before the next one starts" in found.message


@pytest.mark.parametrize(("claim", "expected"), [("gpu", 1), ("other", 0)])
def test_two_objects_with_one_claim(claim: str, expected: int) -> None:
    def subject(name: str, claim: str) -> dict[str, Any]:
        made = pod(serving(resources={"claims": [{"name": "g"}]}), name=name, namespace="models")
        made["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": claim}]
        return made

    assert told(subject("a", "gpu"), subject("b", claim)).count("gpu-shared") == expected


def test_the_case_with_its_comment_as_an_annotation() -> None:
    text = CASES["b17"]["input"]
    told_so = text.replace(
        "# GPU shared with a sleeping instance",
        'metadata: {annotations: {vllm-admission/gpu-memory-in-use: "0.2"}}',
    )
    assert told_so != text
    [server] = read_kubernetes(told_so)
    [found] = [f for f in verdict_of(server).findings if f.severity.value == "warning"]
    assert found.rule == "memory-in-use"
    assert "0.2" in found.message
    assert "0.825" in found.message


ACTUATION = """\
apiVersion: fma.llm-d.ai/v1alpha1
kind: InferenceServerConfig
metadata: {name: tiny}
spec:
  launcherConfigName: launcher
  modelServerConfig:
    port: 8005
    options: >-
      --model org/tiny
      --gpu-memory-utilization 0.825 --enable-sleep-mode
---
apiVersion: fma.llm-d.ai/v1alpha1
kind: LauncherConfig
metadata: {name: launcher}
spec: {maxSleepingInstances: 3}
"""


def test_the_case_in_the_words_of_the_project_it_comes_from() -> None:
    [server] = read_kubernetes(ACTUATION, source="f")
    [found] = [f for f in verdict_of(server).findings if f.rule in RULES]
    assert found.rule == "kubernetes-gpu-share"
    assert "servers that sleep there keep a part of it" in found.message
    assert found.location is not None
    assert (found.location.line, found.location.column) == (10, 32)
    alone = ACTUATION.replace("maxSleepingInstances: 3", "maxInstances: 1")
    [server] = read_kubernetes(alone)
    assert not [f for f in verdict_of(server).findings if f.rule in RULES]


def test_a_command_line_has_it_from_the_hardware() -> None:
    for used, expected in ((0.2, ["memory-in-use"]), (0.05, [])):
        hardware = {"gpu": "H100-80GB", "memory_in_use": used}
        envelope = read_envelope(
            {"command": "vllm serve m --gpu-memory-utilization 0.9", "hardware": hardware}
        )
        [verdict] = judge(envelope, LIBRARY, "0.32.0")
        assert [f.rule for f in verdict.findings if f.rule in RULES] == expected
    on_cpu = {"command": "vllm serve m", "hardware": {"gpu": "cpu", "memory_in_use": 0.9}}
    [verdict] = judge(read_envelope(on_cpu), LIBRARY, "0.32.0")
    assert not any(f.rule in RULES for f in verdict.findings)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gpu-memory-in-use", "1.2", "a share"),
        ("gpu-memory-in-use", "much", "a share"),
        ("gpu-memory-inuse", "0.2", "did you mean vllm-admission/gpu-memory-in-use?"),
        ("model-config", "[]", "a JSON object"),
        ("owner", "me", "there is no annotation"),
    ],
)
def test_annotations_that_say_nothing_are_told(name: str, value: str, words: str) -> None:
    annotations = {f"vllm-admission/{name}": value}
    [server] = servers(deployment(serving(), annotations=annotations))
    [found] = [f for f in server.findings if f.rule == "kubernetes-annotation-unread"]
    assert words in found.message
    assert found.location is not None
    assert found.location.pointer == f"/metadata/annotations/vllm-admission~1{name}"


CONFIG = '{"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 4096}'


def test_the_models_configuration_in_an_annotation() -> None:
    subject = deployment(
        serving("--max-model-len", "8192"), annotations={"vllm-admission/model-config": CONFIG}
    )
    [server] = servers(subject)
    assert server.model_config is not None
    assert server.model_config["max_position_embeddings"] == 4096
    assert not verdict_of(server).accepted


def test_the_models_configuration_in_a_config_map_of_the_stream() -> None:
    held = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "model"},
        "data": {"config.json": CONFIG},
    }
    mounts = [{"name": "m", "mountPath": "/models/q"}]
    server = container(["/models/q", "--max-model-len", "8192"], volumeMounts=mounts)
    subject = deployment(server)
    volumes = [{"name": "m", "configMap": {"name": "model"}}]
    subject["spec"]["template"]["spec"]["volumes"] = volumes
    [found] = servers(held, subject)
    assert found.model_config is not None
    assert not verdict_of(found).accepted
    [alone] = servers(subject)
    assert alone.model_config is None
