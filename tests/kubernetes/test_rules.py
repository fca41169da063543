"""Rules that need the object, beyond their examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of
from app.proposal.envelope import Envelope
from app.validation import judge
from app.verdict.finding import Finding, Severity
from tests.kubernetes.support import LIBRARY, container, deployment, pod

SHM = "/dev/shm"  # noqa: S108 - a path in the container
READY = {"httpGet": {"path": "/health", "port": 8000}}


def found(*objects: dict[str, Any]) -> list[Finding]:
    """Give the findings of the rules of this area, about every server of the stream."""
    findings = []
    for server in servers_in([manifest_of(data) for data in objects]):
        for verdict in judge(Envelope(proposal=server), LIBRARY, "0.32.0"):
            findings += [f for f in verdict.findings if f.rule.startswith("kubernetes-")]
            assert not any(f.rule == "internal-rule-error" for f in verdict.findings)
    return findings


def rules(*objects: dict[str, Any]) -> list[str]:
    return sorted(f.rule.removeprefix("kubernetes-") for f in found(*objects))


def serving(*args: str, gpus: object = None, **members: Any) -> dict[str, Any]:
    if gpus is not None:
        members["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return container(list(args), **{"readinessProbe": READY, **members})


def lws(size: int, *args: str, gpus: int) -> dict[str, Any]:
    spec = {"containers": [serving(*args, gpus=gpus)]}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "g"},
        "spec": {"leaderWorkerTemplate": {"size": size, "workerTemplate": {"spec": spec}}},
    }


@pytest.mark.parametrize(
    ("size", "args", "gpus", "short"),
    [
        (2, ["-tp", "8", "-pp", "2", "--distributed-executor-backend", "ray"], 8, False),
        (2, ["-tp", "8", "-pp", "3", "--distributed-executor-backend", "ray"], 8, True),
        (4, ["-tp", "16", "--nnodes", "2"], 8, False),
        (2, ["-tp", "64", "--nnodes", "2"], 8, True),
    ],
)
def test_a_group_of_pods_is_counted_together(
    size: int, args: list[str], gpus: int, short: bool
) -> None:
    assert ("group-devices" in rules(lws(size, "m", *args, gpus=gpus))) is short


_SERVE = "vllm serve m -tp 8 -pp 2"


@pytest.mark.parametrize(
    ("size", "script", "mended"),
    [
        (2, f"bash multi-node-serving.sh leader --ray_cluster_size=$(SIZE); {_SERVE}", True),
        (2, f"ray start --head --port=6379 && {_SERVE}", True),
        (1, f"ray start --head && {_SERVE}", False),
        (2, f"cp -r /x/ray /y; {_SERVE}", False),
        (2, _SERVE, False),
    ],
)
def test_a_replica_over_a_ray_cluster_needs_the_executor_named(
    size: int, script: str, mended: bool
) -> None:
    """vLLM no longer finds out by itself that other nodes have the GPUs."""
    group = lws(size, gpus=8)
    spec = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    spec["containers"][0] |= {"command": ["sh", "-c", script], "args": None}
    (server,) = servers_in([manifest_of(group)])
    (verdict,) = judge(Envelope(proposal=server), LIBRARY, "0.32.0")
    assert [f.rule for f in verdict.findings if f.severity is Severity.ERROR] == [
        "parallel-world-exceeds-devices"
    ]
    assert verdict.corrected is not None
    assert verdict.corrected["safe"] is mended
    ray = f"{script} --distributed-executor-backend ray"
    assert (json.dumps(ray)[1:-1] in verdict.corrected["kubernetes"]) is mended


@pytest.mark.parametrize(
    ("args", "gpus", "unused"),
    [
        ([], "2", True),
        (["-tp", "2"], "2", False),
        (["-tp", "2", "-dp", "2"], "4", False),
        (["-tp", "2", "-dp", "4", "--data-parallel-size-local", "2"], "4", False),
        (["-tp", "2", "-dp", "4", "--data-parallel-size-local", "2"], "8", True),
        (["-tp", "16", "--nnodes", "2"], "8", False),
        (["-tp", "2", "--distributed-executor-backend", "ray"], "8", False),
        ([], "many", False),
        ([], None, False),
    ],
)
def test_devices_that_nothing_uses(args: list[str], gpus: str | None, unused: bool) -> None:
    assert ("devices-unused" in rules(deployment(serving("m", *args, gpus=gpus)))) is unused


@pytest.mark.parametrize(
    ("path", "volume", "small"),
    [
        (f"{SHM}/", {"emptyDir": {"medium": "Memory"}}, False),
        (SHM, {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}, False),
        (SHM, {"emptyDir": {"medium": "Memory", "sizeLimit": "100M"}}, True),
        (SHM, {"emptyDir": {"sizeLimit": 1000}}, True),
        (SHM, {"emptyDir": {"sizeLimit": "a lot"}}, False),
        (SHM, {"hostPath": {"path": SHM}}, False),
        ("/data", {"emptyDir": {"medium": "Memory"}}, True),
    ],
)
def test_what_is_mounted_as_shared_memory(path: str, volume: dict[str, Any], small: bool) -> None:
    server = serving("m", "-tp", "2", volumeMounts=[{"name": "v", "mountPath": path}])
    subject = deployment(server)
    subject["spec"]["template"]["spec"]["volumes"] = [{"name": "v", **volume}]
    assert ("shared-memory" in rules(subject)) is small


def test_the_size_of_messages_decides_how_much_is_needed() -> None:
    env = [{"name": "VLLM_MQ_MAX_CHUNK_BYTES_MB", "value": "4"}]
    assert rules(deployment(serving("m", "-tp", "2", env=env))) == []


def test_servers_that_share_a_gpu() -> None:
    first = serving("a", "--gpu-memory-utilization", "0.6", gpus="1")
    second = serving("b", "--port", "8001", "--gpu-memory-utilization", "0.6", name="b")
    [one] = [f for f in found(pod(first, second)) if f.rule == "kubernetes-gpu-shared"]
    assert "0.6 + 0.6" in one.message
    assert len(one.related) == 1
    own = {**second, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    assert "gpu-shared" not in rules(pod(first, own))
    assert "gpu-shared" not in rules(pod(first), pod(second))


PROBE = {"httpGet": {"path": "/health", "port": 8000}}


@pytest.mark.parametrize(
    ("model", "probe", "rule"),
    [
        ("org/m-7b", {"failureThreshold": 35}, None),
        ("org/m-70b", {"failureThreshold": 35}, "startup-budget"),
        ("org/m-70b-AWQ", {"failureThreshold": 35}, None),
        ("org/m-8x22b", {"failureThreshold": 60}, "startup-budget"),
        ("org/unknown", {"failureThreshold": 30}, None),
        ("org/unknown", {"failureThreshold": 29, "initialDelaySeconds": 5}, "startup-budget"),
    ],
)
def test_a_start_takes_as_long_as_the_weights(
    model: str, probe: dict[str, Any], rule: str | None
) -> None:
    subject = deployment(serving(model, startupProbe={**PROBE, **probe}))
    assert rules(subject) == ([] if rule is None else [rule])


def test_the_weights_are_counted_where_the_models_configuration_is_known() -> None:
    models = Path(__file__).parents[2] / "lab" / "memory_models.json"
    config = json.dumps(json.loads(models.read_text(encoding="utf-8"))["qwen3.5-35b-a3b"])
    facts = {"vllm-admission/model-config": config}
    probe = {"startupProbe": {**PROBE, "failureThreshold": 35}}
    subject = deployment(serving("org/unknown", gpus=1, **probe), annotations=facts)
    selector = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    subject["spec"]["template"]["spec"]["nodeSelector"] = selector
    [told] = [f for f in found(subject) if f.rule == "kubernetes-startup-budget"]
    assert "the startup probe gives up after 350 s" in told.message


@pytest.mark.parametrize(
    ("members", "others", "told"),
    [
        ({"readinessProbe": {"httpGet": {"port": 9000}}}, [], True),
        ({"readinessProbe": {"httpGet": {"port": "9000"}}}, [], True),
        ({"readinessProbe": {"httpGet": {"port": 9000}}}, [{"name": "x", "image": "x"}], False),
        ({"readinessProbe": {"httpGet": {"port": "nameless"}}}, [], False),
        ({"readinessProbe": {"exec": {"command": ["true"]}}}, [], False),
        ({"readinessProbe": {"tcpSocket": {"port": 8000}}}, [], False),
    ],
)
def test_ports_of_probes(members: dict[str, Any], others: list[dict[str, Any]], told: bool) -> None:
    assert ("probe-port" in rules(deployment(serving("m", **members), *others))) is told


@pytest.mark.parametrize("grace", [None, True, "60", 30, 45])
def test_odd_grace_periods_break_nothing(grace: object) -> None:
    subject = deployment(serving("m", lifecycle={"preStop": {"sleep": {"seconds": 40}}}))
    subject["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace
    assert rules(subject) == (["termination-grace"] if grace == 30 else [])


def test_secrets_are_told_and_not_repeated() -> None:
    env = [
        {"name": "HF_TOKEN", "value": "hf_secret"},
        {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "OPENAI_API_KEY", "value": "$(OTHER)"},
    ]
    findings = found(deployment(serving("m", "--api-key", "sk-secret", env=env)))
    assert [f.rule for f in findings] == ["kubernetes-secret-in-the-open"] * 2
    assert "secret" not in str([f.as_json() for f in findings]).replace("Secret", "").replace(
        "kubernetes-secret", ""
    )
    places = [f.location.pointer for f in findings if f.location is not None]
    spec = "/spec/template/spec/containers/0"
    assert places == [f"{spec}/args/2", f"{spec}/env/0/value"]


def test_a_service_of_another_namespace_sets_nothing() -> None:
    def service(namespace: str) -> dict[str, Any]:
        metadata = {"name": "vllm", "namespace": namespace}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata}

    subject = deployment(serving("m"))
    assert rules(service("models"), subject) == ["service-named-vllm"]
    assert rules(service("other"), subject) == []


def pair(role: str, block: str, **metadata: Any) -> dict[str, Any]:
    transfer = f'{{"kv_connector": "NixlConnector", "kv_role": "{role}"}}'
    return deployment(
        serving("m", "--block-size", block, "--kv-transfer-config", transfer), **metadata
    )


def test_pairs_have_to_agree() -> None:
    decode, prefill = pair("kv_consumer", "16", name="d"), pair("kv_producer", "32", name="p")
    [one] = found(decode, prefill)
    assert one.rule == "kubernetes-pair-differs"
    assert one.evidence == {"setting": "block_size", "here": 16, "there": 32}
    assert found(decode, pair("kv_producer", "16", name="p")) == []
    assert found(decode, pair("kv_producer", "32", name="p", namespace="other")) == []


BOTH = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"%s}'
LOOSE = ', "kv_connector_extra_config": {"enforce_handshake_compat": false}'


@pytest.mark.parametrize(
    ("decode", "prefill", "more", "differs"),
    [
        (["--block-size", "64"], ["--block-size", "16"], "", []),
        (["--block-size", "16"], ["--block-size", "64"], "", ["block_size"]),
        (["--dtype", "half"], ["--dtype", "bfloat16"], "", ["dtype"]),
        (["--dtype", "half"], ["--dtype", "bfloat16"], LOOSE, []),
        (["--dtype", "half"], [], "", []),
        (
            ["--attention-backend", "FLASHINFER"],
            ["--attention-backend", "FLASH_ATTN"],
            "",
            ["attention_backend"],
        ),
    ],
)
def test_what_nixl_compares(
    decode: list[str], prefill: list[str], more: str, differs: list[str]
) -> None:
    transfer = ["--kv-transfer-config", BOTH % more]
    found_ = found(
        deployment(serving("m", *decode, *transfer), name="ms-decode"),
        deployment(serving("m", *prefill, *transfer), name="ms-prefill"),
    )
    assert [f.evidence["setting"] for f in found_] == differs
    assert all(f.rule == "kubernetes-pair-differs" for f in found_)


def test_pairs_have_to_be_of_one_version() -> None:
    transfer = ["--kv-transfer-config", BOTH % ""]
    older = serving("m", *transfer, image="vllm/vllm-openai:v0.31.0")
    prefill = deployment(older, name="ms-prefill")
    [one] = found(deployment(serving("m", *transfer), name="ms-decode"), prefill)
    assert one.evidence == {"setting": "the vLLM version", "here": "0.32.0", "there": "0.31.0"}
    assert found(deployment(serving("m", *transfer), name="other-decode"), prefill) == []


QUOTED = """'{"method": "ngram", "num_speculative_tokens": 2}'"""


@pytest.mark.parametrize(
    ("args", "fixed"),
    [
        (["--speculative-config", QUOTED], ["--speculative-config", QUOTED.strip("'")]),
        ([f"--speculative_config={QUOTED}"], [f"--speculative_config={QUOTED.strip(chr(39))}"]),
        (
            ["--speculative-config", '"{\\"method\\": \\"ngram\\"}"'],
            ["--speculative-config", '{"method": "ngram"}'],
        ),
    ],
)
def test_quotes_around_json_are_taken_away(args: list[str], fixed: list[str]) -> None:
    [server] = servers_in([manifest_of(deployment(serving("m", *args)))])
    [told] = [f for f in server.findings if f.rule == "kubernetes-quoted-json"]
    assert told.fix is not None
    assert told.fix.safe
    edits = [edit.text for edit in told.fix.edits if hasattr(edit, "text")]
    assert edits == [fixed[-1]]


@pytest.mark.parametrize(
    "args",
    [
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'],
        ["--served-model-name", "'{}'"],
        ["--speculative-config", "'{broken'"],
    ],
)
def test_other_quotes_are_left_alone(args: list[str]) -> None:
    assert "quoted-json" not in rules(deployment(serving("m", *args)))


@pytest.mark.parametrize(
    ("kind", "api", "expected"),
    [
        ("LLMInferenceService", "serving.kserve.io/v1alpha1", set()),
        ("Deployment", "apps/v1", {"probe-port", "liveness-before-start"}),
    ],
)
def test_probes_that_a_controller_knows_more_of(kind: str, api: str, expected: set[str]) -> None:
    """KServe brings a startup probe, and a sidecar that takes the port of decode servers."""
    probe = {"httpGet": {"path": "/health", "port": 8001}, "failureThreshold": 3}
    started = container([], livenessProbe=probe)
    subject = {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": "m"},
        "spec": {"template": {"spec": {"containers": [started]}, "containers": [started]}},
    }
    assert {*rules(subject)} & {"probe-port", "liveness-before-start"} == expected


def test_the_port_of_a_supervisor_is_probed() -> None:
    probe = {"httpGet": {"path": "/health", "port": 8008}, "failureThreshold": 90}
    args = ["m", "-dp", "4", "-dpl", "2", "--data-parallel-multi-port-external-lb"]
    subject = deployment(container(args, livenessProbe=probe))
    assert "probe-port" not in rules(subject)
