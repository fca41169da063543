"""What custom resources leave to their operators, as it is written in real ones."""

from __future__ import annotations

from typing import Any

import pytest

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import read_manifests
from tests.kubernetes.support import IMAGE, container, pod
from tests.kubernetes.test_kinds import object_of, servers, verdict_of, words

GPUS = {"limits": {"nvidia.com/gpu": "8"}}


def rules(*objects: dict[str, Any]) -> set[str]:
    return {f.rule for server in servers(*objects) for f in verdict_of(server).findings}


def cluster(head: dict[str, Any], *groups: Any) -> dict[str, Any]:
    spec = {
        "headGroupSpec": {"template": {"spec": {"containers": [head]}}},
        "workerGroupSpecs": list(groups),
    }
    return object_of("ray.io/v1", "RayCluster", spec)


def workers(**members: Any) -> dict[str, Any]:
    node = {"name": "worker", "image": IMAGE, "resources": GPUS}
    return {"template": {"spec": {"containers": [node]}}, **members}


def test_a_node_of_ray_without_a_command_is_no_server() -> None:
    assert servers(cluster({"name": "head", "image": IMAGE}, workers())) == ()
    assert words(cluster(container(["m"]), workers())) == [["m"]]


@pytest.mark.parametrize(
    ("groups", "nodes"),
    [
        ([], 1),
        ([workers()], 2),
        ([workers(replicas=2), workers(replicas=1, numOfHosts=4)], 7),
        ([workers(replicas=0, maxReplicas=3)], 4),
        ([workers(replicas=0)], 1),
        ([workers(replicas="many"), "odd"], 3),
    ],
)
def test_a_cluster_of_ray_has_the_devices_of_all_its_nodes(groups: list[Any], nodes: int) -> None:
    head = container(["m", "-tp", "16", "--distributed-executor-backend", "ray"], resources=GPUS)
    [server] = servers(cluster(head, *groups))
    assert server.workload is not None
    assert server.workload.group_size == nodes
    assert ("kubernetes-group-devices" in rules(cluster(head, *groups))) == (nodes == 1)


RAY = """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: o}
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
        - model_loading_config: {model_id: m}
          engine_kwargs:
            enable_auto_tool_choice: true
            tool_call_parser: hermes
            nonsense: 1
"""


def test_ray_takes_settings_of_the_http_server_too() -> None:
    [server] = servers_in(read_manifests(RAY, "o.yaml"))
    assert {f.rule for f in verdict_of(server).findings} == {"kwargs-unknown"}


ACTUATION = """\
apiVersion: fma.llm-d.ai/v1alpha1
kind: InferenceServerConfig
metadata: {name: o}
spec:
  modelServerConfig:
    options: "--model m"
    env_vars:
      KEPT: "1"
      VLLM_UNHEARD: "1"
"""


def test_a_variable_of_a_mapping_is_told_in_its_own_line() -> None:
    [server] = servers_in(read_manifests(ACTUATION, "o.yaml"))
    place = server.environment["VLLM_UNHEARD"].location
    assert (place.line, place.pointer) == (9, "/spec/modelServerConfig/env_vars/VLLM_UNHEARD")


def test_a_base_that_adds_to_kserves_command_is_a_server() -> None:
    main = {"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--seed 1"}]}
    spec = {
        "template": {"containers": [main]},
        "prefill": {"template": {"containers": [{"name": "main", "args": ["--seed", "2"]}]}},
    }
    kind = ("serving.kserve.io/v1alpha2", "LLMInferenceServiceConfig")
    found = [line[-2:] for line in words(object_of(*kind, spec))]
    assert found == [["--seed", "1"], ["--seed", "2"]]
    shipped = container(["--seed", "3"], name="main", command=["vllm", "serve", "m"])
    assert words(object_of(*kind, {"template": {"containers": [shipped]}})) == [
        ["m", "--seed", "3"]
    ]
    silent = {"template": {"containers": [{"name": "main", "resources": GPUS}, "odd"]}}
    assert servers(object_of(*kind, silent)) == ()


def test_another_engine_of_kserve_is_not_judged_as_vllm() -> None:
    def outcomes(runtime: str) -> list[str]:
        spec = {"runtime": runtime, "template": {"containers": [{"name": "main"}]}}
        subject = object_of("serving.kserve.io/v1alpha2", "LLMInferenceService", spec)
        return [verdict_of(server).outcome.value for server in servers(subject)]

    assert outcomes("kserve-llm-sglang") == []
    assert outcomes("kserve-llm-omni") == ["undetermined"]
    assert outcomes("kserve-llm") == ["accepted"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("hf_abc", True),
        ("pa$$word", True),
        ("$HF_TOKEN", False),
        ("${HF_TOKEN}", False),
        ("$(OTHER)", False),
        ("<your token>", False),
        ("{{ .Values.token }}", False),
    ],
)
def test_what_is_yet_to_be_filled_in_is_no_secret(value: str, told: bool) -> None:
    found = rules(pod(container(["m"], env=[{"name": "HF_TOKEN", "value": value}])))
    assert ("kubernetes-secret-in-the-open" in found) == told


@pytest.mark.parametrize(
    ("image", "outcome"),
    [
        (IMAGE, "rejected"),
        (None, "rejected"),
        ("quay.io/ascend/vllm-ascend:v0.13.0", "accepted"),
        ("mirror/vllm/vllm-openai:v0.32.0", "rejected"),
    ],
)
def test_an_image_of_others_may_bring_connectors(image: str | None, outcome: str) -> None:
    transfer = '{"kv_connector": "OursV1", "kv_role": "kv_both"}'
    found = container(["m", "--kv-transfer-config", transfer], command=["vllm", "serve"])
    found = {**found, "image": image} if image else {k: v for k, v in found.items() if k != "image"}
    [server] = servers(pod(found))
    verdict = verdict_of(server)
    assert verdict.outcome.value == outcome
    assert "kv-transfer-connector-unknown" in {f.rule for f in verdict.findings}


def stack_model(**members: Any) -> dict[str, Any]:
    model = {"name": "m", "modelURL": "org/m", "repository": "vllm/vllm-openai", "tag": "v0.32.0"}
    return {"servingEngineSpec": {"containerPort": 8123, "modelSpec": [{**model, **members}]}}


def stack_runtime(config: dict[str, Any], **members: Any) -> dict[str, Any]:
    spec = {"vllmConfig": config, **members, "model": {"modelURL": "org/m", **members["model"]}}
    return object_of("production-stack.vllm.ai/v1alpha1", "VLLMRuntime", spec)


def test_the_stack_has_options_beside_its_settings_of_vllm() -> None:
    model = stack_model(enableTool=True, toolCallParser="hermes", enableLoRA=False, vllmConfig={})
    assert words(model) == [
        ["org/m", "--port", "8123", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    ]


def test_a_wrong_tool_parser_of_the_stack_is_found() -> None:
    model = stack_model(enableTool=True, toolCallParser="no-such-parser")
    assert "serve-tool-parser" in rules(model)
    assert "serve-tool-parser" not in rules(stack_model(enableTool=True, toolCallParser="hermes"))


def test_a_runtime_of_the_stack_has_options_with_its_model() -> None:
    model = {"maxModelLen": 4096, "maxNumSeqs": 0, "dtype": "bfloat16", "enableLoRA": True}
    cache = {"enabled": True}
    given = stack_runtime({"port": 8001, "v1": True}, model=model, lmCacheConfig=cache)
    assert words(given) == [
        [
            *("org/m", "--max-model-len", "4096", "--dtype", "bfloat16", "--enable-lora"),
            *("--port", "8001", "--kv-transfer-config"),
            '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}',
        ]
    ]


@pytest.mark.parametrize("value", [[], {}, None, "", [1], {"a": 1}])
def test_settings_of_the_stack_may_be_of_any_type(value: Any) -> None:
    model = stack_model(enableTool=value, toolCallParser=value, vllmConfig={"dtype": value})
    assert words(model)[0][:1] == ["org/m"]
    assert words(stack_model(vllmConfig=value, lmcacheConfig=value))[0][:1] == ["org/m"]
    assert words(stack_runtime({"dtype": value}, model={"chatTemplate": value}))
