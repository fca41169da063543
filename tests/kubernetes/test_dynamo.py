"""What Dynamo's operator adds to the pods of a graph, and what it runs that is no server."""

from __future__ import annotations

from typing import Any

import pytest

from app.verdict.verdict import Verdict
from tests.kubernetes.support import gate, patch_of, patched, review
from tests.kubernetes.test_kinds import object_of, servers, verdict_of, words

RANKS = ["--model", "m", "-tp", "2", "-dp=8", "--data-parallel-hybrid-lb"]
ADDED = ["--data-parallel-hybrid-lb", "--data-parallel-size-local", "4"]
ADDED += ["--data-parallel-start-rank", "0"]


def graph(args: list[str], *, nodes: int = 2, gpus: str = "8", **members: Any) -> dict[str, Any]:
    worker = {
        "name": "main",
        "image": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.0",
        "command": ["python3", "-m", "dynamo.vllm"],
        "args": args,
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
    }
    component = {
        "name": "Worker",
        "multinode": {"nodeCount": nodes},
        "podTemplate": {"spec": {"containers": [worker]}},
        **members,
    }
    return object_of("nvidia.com/v1beta1", "DynamoGraphDeployment", {"components": [component]})


def rules(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


def test_ranks_on_several_nodes_get_the_options_of_the_operator() -> None:
    subject = graph(RANKS)
    assert words(subject) == [[*ADDED, *RANKS]]
    [server] = servers(subject)
    verdict = verdict_of(server)
    assert verdict.accepted, [f.message for f in verdict.findings]
    assert rules(verdict_of(servers(graph(RANKS, nodes=1))[0])) >= {"parallel-dp-hybrid-local"}


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        (["--model", "m", "-dp", "8"], "8"),  # they fit into one node
        (["--model", "m", "--tensor_parallel_size", "16", "-dp", "8"], "8"),  # one does not
        (["--model", "m", "-dp", "16", "--data-parallel-size-local", "8"], "8"),
        (["--model", "m", "-dp", "16", "--enable-elastic-ep"], "8"),
        (["--model", "m", "-dp", "$(RANKS)"], "8"),
        (["--model", "m", "-dp"], "8"),
        (["--model", "m", "-dp", "16"], "many"),
    ],
)
def test_the_operator_adds_nothing_where_it_need_not(args: list[str], gpus: str) -> None:
    assert words(graph(args, gpus=gpus)) == [args]


def test_what_the_operator_adds_is_not_written_into_the_resource() -> None:
    bad = graph([*RANKS, "--return-sampling-mask"])
    [verdict] = [verdict_of(server) for server in servers(bad)]
    assert "sampling-mask-logprobs-mode" in rules(verdict)
    assert patch_of(review(bad), gate) == []
    script = "exec python3 -m dynamo.vllm " + " ".join([*RANKS, "--return-sampling-mask"])
    container = {"image": "vllm", "command": ["sh", "-c"], "args": [script]}
    service = {
        "multinode": {"nodeCount": 2},
        "resources": {"limits": {"gpu": "8"}},
        "extraPodSpec": {"mainContainer": container},
    }
    scripted = object_of(
        "nvidia.com/v1alpha1", "DynamoGraphDeployment", {"services": {"Decode": service}}
    )
    assert words(scripted)[0][:5] == ADDED
    patch = patch_of(review(scripted), gate)
    assert "--data-parallel-size-local" not in str(patch)
    assert patch_of(review(patched(scripted, patch)), gate) == []


@pytest.mark.parametrize("image", ["$(IMAGE)", "example/vllm:1.6.0", None])
def test_a_component_without_a_command_is_none_of_vllms(image: str | None) -> None:
    main = {} if image is None else {"image": image}
    service = {"componentType": "frontend", "extraPodSpec": {"mainContainer": main}}
    old = object_of(
        "nvidia.com/v1alpha1", "DynamoGraphDeployment", {"services": {"Frontend": service}}
    )
    component = {"name": "F", "podTemplate": {"spec": {"containers": [{"name": "main", **main}]}}}
    new = object_of("nvidia.com/v1beta1", "DynamoGraphDeployment", {"components": [component]})
    assert servers(old, new) == ()


def test_the_operator_mounts_shared_memory() -> None:
    args = ["--model", "m", "-tp", "2"]
    [server] = servers(graph(args, nodes=1, gpus="2", sharedMemorySize="64Gi"))
    assert "kubernetes-shared-memory" not in rules(verdict_of(server))
