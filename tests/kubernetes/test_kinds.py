"""Which containers of which objects are servers of vLLM, and what is read of them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of, read_manifests
from app.proposal.edit import apply_edits
from app.proposal.envelope import Envelope
from app.proposal.proposal import Proposal
from app.validation import judge
from app.verdict.fix import SetFlag
from app.verdict.verdict import Verdict
from tests.kubernetes.support import GOOD, IMAGE, LIBRARY, container, pod

SPEC = {"containers": [container(GOOD)]}
TEMPLATE = {"template": {"spec": SPEC}}


def servers(*objects: dict[str, Any]) -> tuple[Proposal, ...]:
    return servers_in([manifest_of(data) for data in objects])


def words(*objects: dict[str, Any]) -> list[list[str]]:
    return [[word.text for word in server.words] for server in servers(*objects)]


def object_of(api: str, kind: str, spec: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "o"}, "spec": spec, **members}


@pytest.mark.parametrize(
    "subject",
    [
        object_of("v1", "Pod", SPEC),
        object_of("apps/v1", "Deployment", TEMPLATE),
        object_of("apps/v1", "StatefulSet", TEMPLATE),
        object_of("apps/v1", "ReplicaSet", TEMPLATE),
        object_of("apps/v1", "DaemonSet", TEMPLATE),
        object_of("batch/v1", "Job", TEMPLATE),
        object_of("batch/v1", "CronJob", {"jobTemplate": {"spec": TEMPLATE}}),
        object_of("v1", "ReplicationController", TEMPLATE),
        {"apiVersion": "v1", "kind": "PodTemplate", "template": {"spec": SPEC}},
        object_of(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": SPEC}}},
        ),
        object_of("serving.kserve.io/v1beta1", "InferenceService", {"predictor": SPEC}),
        object_of("serving.kserve.io/v1alpha1", "ServingRuntime", SPEC),
        object_of("ray.io/v1", "RayCluster", {"headGroupSpec": TEMPLATE}),
        object_of("example.com/v1", "Unheard", {"a": [{"b": TEMPLATE}]}),
        SPEC,
    ],
    ids=lambda subject: subject.get("kind", "fragment"),
)
def test_pods_of_any_kind_are_found(subject: dict[str, Any]) -> None:
    assert words(subject) == [GOOD]
    assert words({"kind": "List", "apiVersion": "v1", "items": []}, subject) == [GOOD]


def test_a_group_of_pods_has_the_devices_of_all() -> None:
    gpus = {"limits": {"nvidia.com/gpu": "8"}}
    spec = {"containers": [container(GOOD, resources=gpus)]}
    group = {"size": 2, "leaderTemplate": {"spec": spec}, "workerTemplate": {"spec": spec}}
    leader, worker = servers(
        object_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"leaderWorkerTemplate": group})
    )
    assert leader.workload is not None
    assert worker.workload is not None
    assert (leader.workload.role, worker.workload.role) == ("leaderTemplate", "workerTemplate")
    assert leader.workload.group_size == 2
    assert leader.hardware is not None
    assert (leader.hardware.count, leader.hardware.nodes) == (8, 2)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"image": "nginx:1", "args": ["--port", "1"]}, None),
        ({"image": "ollama/ollama", "args": ["serve"]}, None),
        ({"image": "ghcr.io/x/vllm-admission:1", "args": ["serve", "--port", "8080"]}, None),
        ({"image": "vllm/vllm-router:v1", "args": ["--port", "1"]}, None),
        ({"image": "lmcache/lmstack-router", "args": ["--port", "1"]}, None),
        ({"image": "ghcr.io/x/vllm-stack-router:v1", "args": ["--port", "1"]}, None),
        ({"image": "busybox", "command": ["sh", "-c", "until nc -z a 1; do sleep 1; done"]}, None),
        ({"image": "busybox", "command": ["sleep infinity"]}, None),
        ({"image": "x", "command": ["sh", "-c", "echo 'unclosed"]}, None),
        ({"image": IMAGE, "command": ["sh", "-c", "bash /vllm-workspace/x.sh worker"]}, None),
        ({"image": "x/fork-vllm:1", "args": ["m", "--port", "1"]}, ["m", "--port", "1"]),
        ({"image": "x/fork-vllm:1", "args": ["serve", "m"]}, ["m"]),
        ({"image": "x", "command": ["vllm", "serve"], "args": ["m"]}, ["m"]),
        ({"image": "x", "command": ["sh", "-c"], "args": ["vllm serve m"]}, ["m"]),
        ({"image": "x", "command": ["sh", "-c", "cd / && exec vllm serve m $@"]}, ["m", "$@"]),
        ({"args": ["serve", "m"]}, ["m"]),
        ({"args": ["m", "--max_model_len=1"]}, ["m", "--max_model_len=1"]),
        ({"args": ["--port", "80"]}, None),
        ({"image": IMAGE, "args": ["$(M)"], "env": [{"name": "M", "value": "x"}]}, ["x"]),
        ({"image": IMAGE, "args": ["$$(M)", "$(N)"]}, ["$(M)", "$(N)"]),
        ({"image": IMAGE}, []),
    ],
)
def test_what_a_container_starts(found: dict[str, Any], expected: list[str] | None) -> None:
    assert words(pod({"name": "c", **found})) == ([] if expected is None else [expected])


def test_variables_come_from_the_stream_in_the_order_of_the_kubelet() -> None:
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "s"},
        "data": {"A": "map", "B": "map"},
    }
    secret = {"kind": "Secret", "metadata": {"name": "k"}, "data": {"T": "aGY="}}
    variables = [
        {"name": "B", "value": "own $(A)"},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "A"}}},
        {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "E", "value": "$(F)"},
        {"name": "F", "value": "later"},
        {"name": "G", "value": "$(D):1"},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "k", "key": "T"}}},
    ]
    sources = [{"configMapRef": {"name": "s"}}, {"prefix": "P_", "configMapRef": {"name": "s"}}]
    subject = pod(container(["$(B)", "$(D)"], env=variables, envFrom=sources))
    [server] = servers(settings, {"apiVersion": "v1", **secret}, subject)
    values = {name: v.value for name, v in server.environment.items()}
    assert values == {
        "A": "map",
        "B": "own map",
        "P_A": "map",
        "P_B": "map",
        "C": "map",
        "D": "$(D)",
        "E": "$(F)",
        "F": "later",
        "G": "$(D):1",
        "T": "hf",
    }
    assert server.environment["D"].unresolved == ("D",)
    assert server.environment["G"].unresolved == ("D",)
    assert [word.text for word in server.words] == ["own map", "$(D)"]
    assert server.words[1].unresolved == ("D",)
    [alone] = servers(subject)
    assert "kubernetes-environment-unseen" in {f.rule for f in alone.findings}


def test_what_is_no_string_is_told_with_its_place() -> None:
    text = "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args: [m, 8001, on]\n"
    [server] = servers_in(read_manifests(text, "f"))
    found = [f for f in server.findings if f.rule == "kubernetes-not-a-string"]
    assert [(f.location.line, f.location.column) for f in found if f.location] == [(5, 15), (5, 21)]


KSERVE = object_of(
    "serving.kserve.io/v1beta1",
    "InferenceService",
    {
        "predictor": {
            "model": {
                "modelFormat": {"name": "huggingface"},
                "args": ["--model_name=demo", "--max_model_len=32kb"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        }
    },
)
STACK = """\
servingEngineSpec:
  modelSpec:
  - name: big
    repository: vllm/vllm-openai
    tag: v0.32.0
    modelURL: org/m
    requestGPU: 4
    shmSize: 8Gi
    vllmConfig:
      tensorParallelSize: 4
      enablePrefixCaching: false
      maxModelLen: 4096
      extraArgs: [--no-such-option]
"""
RUNTIME = object_of(
    "production-stack.vllm.ai/v1alpha1",
    "VLLMRuntime",
    {
        "model": {"modelURL": "org/m"},
        "vllmConfig": {"tensorParallelSize": 2, "extraArgs": ["--enforce-eager"]},
        "deploymentConfig": {
            "image": {"registry": "docker.io", "name": "vllm/vllm-openai:v0.31.0"},
            "resources": {"gpu": "2"},
        },
    },
)
KUBEAI = object_of(
    "kubeai.org/v1",
    "Model",
    {
        "engine": "VLLM",
        "url": "hf://org/m?pull=always",
        "args": ["--max-model-len=1024"],
        "env": {"VLLM_PORT": "tcp://1.2.3.4:80"},
    },
)


def verdict_of(server: Proposal) -> Verdict:
    [verdict] = judge(Envelope(proposal=server), LIBRARY, "0.32.0")
    return verdict


def test_kserve_names_a_format_or_a_runtime() -> None:
    [server] = servers(KSERVE)
    verdict = verdict_of(server)
    [error] = [f for f in verdict.findings if f.severity.value == "error"]
    assert error.rule == "cli-invalid-value"
    assert error.location is not None
    assert error.location.pointer == "/spec/predictor/model/args/1"
    runtime = {
        **object_of(
            "serving.kserve.io/v1alpha1",
            "ClusterServingRuntime",
            {"containers": [{"name": "kserve-container", "image": IMAGE, "args": ["m"]}]},
        ),
        "metadata": {"name": "mine"},
    }
    named = object_of(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"model": {"runtime": "mine", "args": ["--enforce-eager"]}}},
    )
    assert words(runtime, named) == [["m"], ["m", "--enforce-eager"]]
    # Its own arguments are vLLM's, whatever the runtime that is not in the stream.
    assert words(named) == [["--enforce-eager"]]
    model = named["spec"]["predictor"]["model"]
    model["args"] = ["--port", "1"]
    assert words(named) == []
    model["modelFormat"] = {"name": "vLLM"}
    assert words(named) == [["--port", "1"]]


def test_production_stack_has_names_of_its_own() -> None:
    [server] = servers_in(read_manifests(STACK, "values.yaml"))
    assert [word.text for word in server.words] == [
        *["org/m", "--tensor-parallel-size", "4", "--no-enable-prefix-caching"],
        *["--max-model-len", "4096", "--no-such-option"],
    ]
    verdict = verdict_of(server)
    [error] = [f for f in verdict.findings if f.severity.value == "error"]
    assert error.location is not None
    assert (error.location.line, error.location.column) == (13, 19)
    assert not any(f.rule.startswith("kubernetes-shared") for f in verdict.findings)
    assert words(RUNTIME) == [["org/m", "--tensor-parallel-size", "2", "--enforce-eager"]]
    [runtime] = servers(RUNTIME)
    assert runtime.hardware is not None
    assert runtime.hardware.count == 2
    assert verdict_of(runtime).vllm_version == "0.31.0"


def test_kubeai_and_its_environment() -> None:
    [server] = servers(KUBEAI)
    assert [word.text for word in server.words] == ["org/m", "--max-model-len=1024"]
    assert server.environment["VLLM_PORT"].value == "tcp://1.2.3.4:80"
    assert words(object_of("kubeai.org/v1", "Model", {"engine": "OLlama"})) == []


def test_llm_services_of_kserve_have_several_pods() -> None:
    extra = [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--enforce-eager --max-num-seqs '4'"}]
    main = {"containers": [{"name": "main", "env": extra}]}
    given = {"containers": [{"name": "main", "command": ["vllm", "serve"], "args": ["m"]}]}
    spec = {"template": main, "prefill": {"template": given}}
    subject = object_of("serving.kserve.io/v1alpha1", "LLMInferenceService", spec)
    assert words(subject) == [["/mnt/models", "--enforce-eager", "--max-num-seqs", "4"], ["m"]]
    assert {"VLLM_ADDITIONAL_ARGS"} & servers(subject)[0].environment.keys() == set()


def test_llm_services_add_their_arguments_to_kserves() -> None:
    extra = [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--enforce-eager"}]
    main = {"containers": [{"name": "main", "env": extra, "args": ["--max-num-seqs=4"]}]}
    spec = {"template": main}
    subject = object_of("serving.kserve.io/v1alpha1", "LLMInferenceService", spec)
    assert words(subject) == [["/mnt/models", "--enforce-eager", "--max-num-seqs=4"]]
    sglang = {**spec, "runtime": "kserve-llm-sglang"}
    assert words(object_of("serving.kserve.io/v1alpha1", "LLMInferenceService", sglang)) == []


SHM = {
    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - in the container
}


@pytest.mark.parametrize(("mounted", "told"), [(True, 0), (False, 1)])
def test_a_runtime_of_the_stream_brings_its_volumes(mounted: bool, told: int) -> None:
    held = container(["m", "-tp", "2"], name="kserve-container", **(SHM if mounted else {}))
    volume = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    runtime = {
        **object_of(
            "serving.kserve.io/v1alpha1",
            "ServingRuntime",
            {"containers": [held], "volumes": [volume]},
        ),
        "metadata": {"name": "mine"},
    }
    named = object_of(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"model": {"runtime": "mine"}}},
    )
    found = [f.rule for server in servers(runtime, named) for f in verdict_of(server).findings]
    assert found.count("kubernetes-shared-memory") == 2 * told


@pytest.mark.parametrize("subject", [KSERVE, KUBEAI, RUNTIME])
def test_what_a_controller_mounts_is_an_open_question(subject: dict[str, Any]) -> None:
    [server] = servers(subject)
    edited = apply_edits(server, [SetFlag("tensor_parallel_size", 2)], LIBRARY.get("0.32.0"))
    verdict = verdict_of(edited)
    assert not any(f.rule == "kubernetes-shared-memory" for f in verdict.findings)
    assert "kubernetes-shared-memory" in {skipped.rule for skipped in verdict.not_checked}


def test_what_was_made_up_is_mended_where_it_is_written() -> None:
    text = STACK.replace("--no-such-option", "--enforce-eager=true")
    [server] = servers_in(read_manifests(text, "values.yaml"))
    verdict = verdict_of(server)
    assert not verdict.accepted
    assert verdict.corrected is not None
    mended = STACK.replace("--no-such-option", "--enforce-eager")
    assert verdict.corrected["kubernetes"] == mended


def test_what_another_object_says_is_mended_there() -> None:
    runtime = {
        **object_of(
            "serving.kserve.io/v1alpha1",
            "ServingRuntime",
            {"containers": [container(["m", "--enforce-eager=true"], name="kserve-container")]},
        ),
        "metadata": {"name": "mine"},
    }
    named = object_of(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"model": {"runtime": "mine"}}},
    )
    of_runtime, of_service = map(verdict_of, servers(runtime, named))
    assert of_runtime.corrected is not None
    assert of_service.corrected is None
    [told] = [f for f in of_service.findings if f.rule == "kubernetes-fix-elsewhere"]
    assert told.message.startswith("write --enforce-eager: there is no place for it")
    assert not [f for f in of_runtime.findings if f.rule == "kubernetes-fix-elsewhere"]


RAY = """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: llm}
spec:
  serveConfigV2: |
    applications:
    - name: a
      import_path: ray.serve.llm:build_openai_app
      args:
        llm_configs:
        - model_loading_config: {model_id: qwen, model_source: Qwen/Qwen3-8B}
          engine_kwargs:
            tensor_parallel_size: 2
            return_sampling_mask: true
        - model_loading_config: {model_id: other}
          engine_kwargs: {max_model_lenn: 8}
  rayClusterConfig: {}
"""


def test_ray_has_its_configuration_in_a_string() -> None:
    first, second = servers_in(read_manifests(RAY, "f"))
    assert (first.subject, second.subject) == ("RayService/llm qwen", "RayService/llm other")
    assert first.kwargs is not None
    assert first.kwargs["model"] == "Qwen/Qwen3-8B"
    [mask] = [f for f in verdict_of(first).findings if f.severity.value == "error"]
    assert mask.rule == "sampling-mask-logprobs-mode"
    assert mask.location is not None
    assert (mask.location.line, mask.location.column) == (14, 35)
    assert mask.location.pointer == "/spec/serveConfigV2"
    [unknown] = [f for f in verdict_of(second).findings if f.severity.value == "error"]
    assert unknown.rule == "kwargs-unknown"
    assert unknown.location is not None
    assert unknown.location.line == 16
    assert words(object_of("ray.io/v1", "RayService", {"serveConfigV2": "a: ]"})) == []
    assert [s.kwargs for s in servers(yaml.safe_load(RAY))] == [first.kwargs, second.kwargs]


def required(*values: str, operator: str = "In") -> dict[str, Any]:
    match = {"key": "nvidia.com/gpu.product", "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [match]}]}
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"affinity": {"nodeAffinity": needed}}


@pytest.mark.parametrize(
    ("members", "product"),
    [
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}, "NVIDIA-H100"),
        ({"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}, "nvidia-l4"),
        (required("Tesla-T4"), "Tesla-T4"),
        (required("Tesla-T4", "NVIDIA-L4"), None),
        (required("Tesla-T4", operator="NotIn"), None),
        ({"nodeSelector": {"disk": "ssd"}}, None),
        ({"affinity": {"nodeAffinity": []}}, None),
    ],
)
def test_the_product_is_what_the_nodes_have_to_have(
    members: dict[str, Any], product: str | None
) -> None:
    subject = pod(container(["m"], resources={"limits": {"nvidia.com/gpu": "1"}}))
    subject["spec"] |= members
    [server] = servers(subject)
    assert server.hardware is not None
    assert server.hardware.count == 1
    assert (server.hardware.gpu or "").startswith(product or "")
    assert (server.hardware.gpu is None) is (product is None)


def dynamo(size: int, *args: str) -> dict[str, Any]:
    runtime = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.0"
    worker = {
        "name": "main",
        "image": runtime,
        "command": ["python3", "-m", "dynamo.vllm"],
        "args": list(args),
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    frontend = {"name": "main", "image": runtime}
    components = [
        {"name": "Frontend", "podTemplate": {"spec": {"containers": [frontend]}}},
        {
            "name": "Worker",
            "multinode": {"nodeCount": size},
            "podTemplate": {"spec": {"containers": [worker]}},
        },
    ]
    return object_of("nvidia.com/v1beta1", "DynamoGraphDeployment", {"components": components})


@pytest.mark.parametrize(("gpus", "outcome"), [("2", "accepted"), ("1", "rejected")])
def test_dynamo_has_its_resources_beside_the_pod(gpus: str, outcome: str) -> None:
    main = {"args": ["-m", "dynamo.vllm", "--model", "m", "-tp", "2"]}
    service = {
        "resources": {"limits": {"gpu": gpus}},
        "extraPodSpec": {"mainContainer": main},
    }
    subject = object_of(
        "nvidia.com/v1alpha1", "DynamoGraphDeployment", {"services": {"Decode": service}}
    )
    [server] = servers(subject)
    verdict = verdict_of(server)
    assert verdict.outcome.value == outcome
    assert not any(f.rule == "kubernetes-shared-memory" for f in verdict.findings)


def test_dynamo_spreads_over_nodes_by_itself() -> None:
    args = ["--model", "m", "-tp", "2", "--disaggregation-mode", "decode"]
    [server] = servers(dynamo(2, *args))
    assert server.workload is not None
    assert (server.workload.role, server.workload.group_size) == ("Worker", 2)
    verdict = verdict_of(server)
    assert verdict.accepted, [f.message for f in verdict.findings]
    [alone] = servers(dynamo(1, *args))
    assert not verdict_of(alone).accepted


def test_variables_that_double_each_other_stay_as_they_are_written() -> None:
    doubling = [{"name": "A0", "value": "0123456789"}]
    doubling += [{"name": f"A{i}", "value": f"$(A{i - 1})$(A{i - 1})"} for i in range(1, 60)]
    [server] = servers(pod(container(["m", "--served-model-name", "$(A12)$(A59)"], env=doubling)))
    assert len(server.environment["A12"].value) == 10 * 2**12
    assert server.environment["A59"].value == "$(A58)$(A58)"
    assert server.environment["A59"].unresolved == ("A58",)
    assert server.words[-1].unresolved == ("A59",)
    assert sum(len(v.value) for v in server.environment.values()) < 4 * 2**20
