"""What controllers give to the servers of a group of pods."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.kubernetes.support import IMAGE, container
from tests.kubernetes.test_kinds import object_of, servers, verdict_of, words


def test_a_group_of_pods_knows_its_size_and_ranks() -> None:
    args = ["m", "--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)"]
    own = [{"name": "LWS_GROUP_SIZE", "value": "7"}]  # the controller's wins

    def read(size: Any, *, leader: bool = True) -> list[list[str]]:
        spec = {"containers": [container(args, env=own)]}
        group = {"size": size, "workerTemplate": {"spec": spec}}
        if leader:
            group["leaderTemplate"] = {"spec": spec}
        whole = {"leaderWorkerTemplate": group}
        subject = object_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", whole)
        return [
            [*line[2:3], *line[4:5], *map(str, server.words[4].unresolved)]
            for line, server in zip(words(subject), servers(subject), strict=True)
        ]

    index = "$(LWS_WORKER_INDEX)"
    assert read(2) == [["2", "0"], ["2", "1"]]
    assert read(3) == [["3", "0"], ["3", index, "LWS_WORKER_INDEX"]]
    assert read(2, leader=False) == [["2", index, "LWS_WORKER_INDEX"]]
    assert read(None, leader=False) == [["1", "0"]]
    assert read("many", leader=False) == [
        ["$(LWS_GROUP_SIZE)", index, "LWS_WORKER_INDEX"],
    ]


def test_ranks_that_a_script_works_out_are_known_where_the_group_is() -> None:
    script = (
        "FIRST=$(( ${LWS_WORKER_INDEX:-0} * PER_POD ))\n"
        "exec vllm serve m --data-parallel-size $((LWS_GROUP_SIZE * PER_POD)) "
        "--data-parallel-size-local $PER_POD --data-parallel-start-rank $FIRST"
    )
    env = [{"name": "PER_POD", "value": "8"}]
    started = container(None, command=["bash", "-c", script], env=env)
    spec = {"containers": [started]}

    def told(size: int) -> list[list[tuple[str, tuple[str, ...]]]]:
        group = {"size": size, "leaderTemplate": {"spec": spec}, "workerTemplate": {"spec": spec}}
        whole = {"leaderWorkerTemplate": group}
        subject = object_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", whole)
        return [
            [(word.text, word.unresolved) for word in server.words if word.text[:1] != "-"][1:]
            for server in servers(subject)
        ]

    open_rank = ("$(( ${LWS_WORKER_INDEX:-0} * PER_POD ))", ("LWS_WORKER_INDEX",))
    assert told(2) == [
        [("16", ()), ("8", ()), ("0", ())],
        [("16", ()), ("8", ()), ("8", ())],
    ]
    assert told(4) == [
        [("32", ()), ("8", ()), ("0", ())],
        [("32", ()), ("8", ()), open_rank],
    ]


def llm_service(spec: dict[str, Any]) -> dict[str, Any]:
    return object_of("serving.kserve.io/v1alpha2", "LLMInferenceService", spec)


MAIN: Final = {"containers": [{"name": "main"}]}


def group_of(parallelism: dict[str, Any], main: dict[str, Any] | None = None) -> dict[str, Any]:
    pod = {"containers": [{"name": "main", **(main or {})}]}
    return llm_service({"parallelism": parallelism, "template": pod, "worker": pod})


def test_llm_services_of_one_pod_have_the_tensor_size_alone() -> None:
    spec = {"template": MAIN, "parallelism": {"tensor": 2, "data": 16, "pipeline": 4}}
    assert words(llm_service(spec)) == [["/mnt/models", "--tensor-parallel-size", "2"]]
    assert words(llm_service({"template": MAIN, "parallelism": {"tensor": "2"}})) == [
        ["/mnt/models"]
    ]


def test_groups_of_llm_services_are_data_parallel_first() -> None:
    size = ["/mnt/models", "--tensor-parallel-size", "1", "--data-parallel-size", "24"]
    size += ["--data-parallel-size-local", "8", "--enable-expert-parallel"]
    size += ["--data-parallel-start-rank"]
    sizes = {"tensor": 1, "data": 24, "dataLocal": 8, "expert": True, "pipeline": 2}
    subject = llm_service(
        {"prefill": {"template": MAIN, "worker": MAIN, "parallelism": sizes}, "template": MAIN}
    )
    leader, worker = servers(subject)[1:]
    assert words(subject) == [
        ["/mnt/models"],
        [*size, "0", "--api-server-count", "8"],
        [*size, "$(LWS_WORKER_INDEX)", "--headless"],
    ]
    assert worker.words[-2].unresolved == ("LWS_WORKER_INDEX",)
    for server in (leader, worker):
        assert server.environment["LWS_GROUP_SIZE"].value == "3"
        assert server.environment["LWS_LEADER_ADDRESS"].unresolved
    pair = words(
        group_of(
            {"data": 16, "dataLocal": 8}, {"env": [{"name": "VLLM_API_SERVER_COUNT", "value": "2"}]}
        )
    )
    assert [line[-3:] for line in pair] == [
        ["0", "--api-server-count", "2"],
        ["--data-parallel-start-rank", "8", "--headless"],
    ]


def test_sizes_that_are_not_given_are_one() -> None:
    assert [line[1:5] for line in words(group_of({"data": 2}))] == [
        ["--data-parallel-size", "2", "--data-parallel-size-local", "1"]
    ] * 2
    assert [line[1:5] for line in words(group_of({"dataLocal": 2}))] == [
        ["--data-parallel-size", "1", "--data-parallel-size-local", "2"]
    ] * 2
    # KServe refuses these, and has no arguments for them.
    assert words(group_of({"tensor": 2})) == [["/mnt/models", "--tensor-parallel-size", "2"]] * 2
    assert words(group_of({"pipeline": True})) == [["/mnt/models"]] * 2


@pytest.mark.parametrize(("pods", "index"), [(2, "1"), (4, "$(LWS_WORKER_INDEX)")])
def test_pods_of_a_group_are_stages_of_a_pipeline(pods: int, index: str) -> None:
    stages = ["--pipeline-parallel-size", str(pods), "--nnodes", str(pods), "--node-rank"]
    head = ["/mnt/models", "--tensor-parallel-size", "8", *stages]
    assert words(group_of({"tensor": 8, "pipeline": pods})) == [
        [*head, "0"],
        [*head, index, "--headless"],
    ]


@pytest.mark.parametrize(
    ("gpus", "found"),
    [(8, []), (4, ["kubernetes-group-devices", "parallel-devices-short"])],
)
def test_a_pod_needs_the_gpus_of_its_stage(gpus: int, found: list[str]) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": gpus}}, "image": IMAGE}
    verdicts = list(map(verdict_of, servers(group_of({"tensor": 8, "pipeline": 2}, limits))))
    assert [verdict.accepted for verdict in verdicts] == [True, True]
    assert [[f.rule for f in verdict.findings] for verdict in verdicts] == [found, found]


def test_own_commands_of_a_group_know_its_size_and_ranks() -> None:
    args = ["m", "--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(RANK)"]
    env = [
        {"name": "LWS_GROUP_SIZE", "value": "7"},
        {"name": "RANK", "value": "$(LWS_WORKER_INDEX)"},
    ]
    main = {"command": ["vllm", "serve"], "args": args, "env": env}
    subject = group_of({"tensor": 8, "pipeline": 2}, main)
    assert words(subject) == [["m", "--nnodes", "2", "--node-rank", n] for n in "01"]
    leader, worker = servers(subject)
    assert worker.environment["RANK"].location.pointer == "/spec/worker/containers/0/env/1"
    assert worker.environment["LWS_GROUP_SIZE"].location.pointer == "/spec/parallelism"
    assert leader.workload is not None
    assert leader.workload.group_size == 2
    alone = llm_service({"template": subject["spec"]["template"]})
    assert words(alone) == [["m", "--nnodes", "7", "--node-rank", "$(LWS_WORKER_INDEX)"]]
