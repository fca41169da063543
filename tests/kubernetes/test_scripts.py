"""Scripts and commands of containers: which of them start a server of vLLM, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import read_manifests
from tests.kubernetes.support import IMAGE, answered, container, pod, review
from tests.kubernetes.test_kinds import object_of, servers, verdict_of, words

GPUS = {"limits": {"nvidia.com/gpu": "8"}}


def script(text: str, **members: Any) -> dict[str, Any]:
    return container(None, command=["sh", "-c", text], **members)


@pytest.mark.parametrize(
    "text",
    [
        "/opt/vllm/examples/ray_init.sh worker --ray_address=$(LWS_LEADER_ADDRESS)",
        "/vllm/start.sh",
        "--model m",
        "export VLLM_CACHE_ROOT=/cache",
        "MODEL=m",
    ],
)
@pytest.mark.parametrize("image", [IMAGE, "example/vllm"])
def test_a_script_without_a_server_is_none(text: str, image: str) -> None:
    assert servers(pod(script(text, image=image))) == ()


@pytest.mark.parametrize(
    "text",
    [
        "if ready; then sleep 1; fi | tee log; case m in m) vllm serve m;; esac",
        "while true; do sleep 1; done\npython3 -m huggingfaceserver --model_dir=/m",
    ],
)
def test_a_script_that_cannot_be_read_is_not_compared_with_its_pod(text: str) -> None:
    probe = {"httpGet": {"path": "/health", "port": 9000}}
    found = script(text, resources=GPUS, readinessProbe=probe, livenessProbe=probe)
    [server] = servers(object_of("v1", "Pod", {"containers": [found]}))
    verdict = verdict_of(server)
    assert verdict.outcome.value == "undetermined"
    assert {f.rule for f in verdict.findings} == {"kubernetes-script-unread"}


@pytest.mark.parametrize(
    ("args", "image", "expected"),
    [
        (["python3", "-m", "vllm.entrypoints.api_server", "--model=m"], "example/vllm-serve", None),
        (["bash", "/start.sh"], "example/vllm-serve", None),
        (["exec", "start"], "example/vllm-serve", None),
        (["vllm", "serve", "m"], "example/vllm-serve", ["m"]),
        (["/models/bash-coder", "--seed", "1"], "example/vllm-serve", ["/models/bash-coder"]),
        (["python3", "start.py"], IMAGE, ["python3", "start.py"]),
    ],
)
def test_arguments_that_are_a_command_are_none_of_vllms(
    args: list[str], image: str, expected: list[str] | None
) -> None:
    found = words(pod(container(args, image=image)))
    assert [line[: len(expected or ())] for line in found] == (
        [] if expected is None else [expected]
    )


def test_the_roles_of_a_disaggregated_set_are_groups() -> None:
    args = ["m", "--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)"]
    template = {"spec": {"containers": [container(args)]}}
    roles = [
        {"name": "prefill", "spec": {"leaderWorkerTemplate": {"workerTemplate": template}}},
        {
            "name": "decode",
            "spec": {
                "leaderWorkerTemplate": {
                    "size": 2,
                    "leaderTemplate": template,
                    "workerTemplate": template,
                }
            },
        },
    ]
    subject = object_of("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", {"roles": roles})
    assert [[line[2], line[4]] for line in words(subject)] == [["1", "0"], ["2", "0"], ["2", "1"]]
    found = servers(subject)
    assert [s.workload and s.workload.group_size for s in found] == [1, 2, 2]
    assert found[0].subject == "DisaggregatedSet/o prefill vllm"


HELD = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data:
  run.sh: |
    #!/bin/bash
    set -e
    exec vllm serve m --return-sampling-mask --seed $SEED
  until.sh: |
    until ready; do eval $STEP; done
    vllm serve m
  run.py: |
    #!/usr/bin/env python3
    # vllm serve m
  other.sh: |
    echo vllm
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: example/trainer
    command: COMMAND
    env: [{name: SEED, value: "3"}]
    volumeMounts: [{name: s, mountPath: /config}]
  volumes: [{name: s, configMap: {name: scripts}}]
"""


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ('[/bin/bash, /config/run.sh, "--a"]', "rejected"),
        ("[/config/run.sh]", "rejected"),
        ("[bash, -c, /config/run.sh]", "rejected"),
        ("[sh, -c, exec /config/run.sh]", "rejected"),
        ("[env, A=b, bash, -e, /config/run.sh]", "rejected"),
        ("[bash, /config/until.sh]", "undetermined"),
        ("[bash, /config/other.sh]", None),
        ("[/config/run.py]", None),
        ("[python3, /config/run.py]", None),
        ("[bash, /config/unheard.sh]", None),
        ("[bash]", None),
    ],
)
def test_a_script_of_a_config_map_is_read_where_it_stands(
    command: str, outcome: str | None
) -> None:
    text = HELD.replace("COMMAND", command)
    found = servers_in(read_manifests(text, "o.yaml"))
    assert [verdict_of(server).outcome.value for server in found] == ([outcome] if outcome else [])
    if outcome == "rejected":
        [server] = found
        assert [word.text for word in server.words][-1] == "3"
        assert server.words[1].location.line == 8
        corrected = verdict_of(server).corrected
        assert corrected is not None
        written = "--seed $SEED --logprobs-mode processed_logprobs\n"
        assert corrected["kubernetes"] == text.replace("--seed $SEED\n", written)


def test_a_script_beside_the_object_is_not_seen_in_a_review() -> None:
    objects = [
        yaml.safe_load(part)
        for part in HELD.replace("COMMAND", "[sh, /config/run.sh]").split("---")
    ]
    assert answered(review(objects[1]))["allowed"] is True
