"""What controllers give to the servers of a group of pods."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.support import container
from tests.kubernetes.test_kinds import object_of, servers, words


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


def test_llm_services_have_the_parallelism_they_say() -> None:
    main = {"containers": [{"name": "main"}]}
    spec = {
        "template": main,
        "parallelism": {"tensor": 2, "data": 16},
        "prefill": {
            "template": main,
            "worker": main,
            "parallelism": {"tensor": 1, "data": 16, "dataLocal": 8, "expert": True},
        },
    }
    subject = object_of("serving.kserve.io/v1alpha1", "LLMInferenceService", spec)
    group = ["--tensor-parallel-size", "1", "--data-parallel-size", "16"]
    group += ["--data-parallel-size-local", "8", "--enable-expert-parallel"]
    assert words(subject) == [
        ["/mnt/models", "--tensor-parallel-size", "2"],
        ["/mnt/models", *group],
        ["/mnt/models", *group, "--headless"],
    ]
