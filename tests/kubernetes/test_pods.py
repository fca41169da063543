"""Servers of which every pod of a group starts its own: all of them are judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from app.kubernetes.read import read_kubernetes
from app.proposal.envelope import Envelope
from app.validation import judge
from app.verdict.verdict import Outcome, Verdict
from tests.kubernetes.support import (
    IMAGE,
    LIBRARY,
    answered,
    container,
    patch_of,
    patched,
    review,
)
from tests.kubernetes.test_kinds import object_of, servers

SCRIPT = """\
FIRST=$(( ${LWS_WORKER_INDEX:-0} * PER_POD ))
source /opt/vllm/bin/activate
exec vllm serve m --data-parallel-size %s --data-parallel-size-local $PER_POD \\
  --data-parallel-hybrid-lb --data-parallel-start-rank $FIRST \\
  --data-parallel-address $LWS_LEADER_ADDRESS --data-parallel-rpc-port 5555 %s
"""


def group(
    size: Any, ranks: str = "$((LWS_GROUP_SIZE * PER_POD))", more: str = "", leader: str = ""
) -> dict[str, Any]:
    env = [{"name": "PER_POD", "value": "8"}]
    started = container(
        None,
        image=IMAGE,
        command=["bash", "-c", SCRIPT % (ranks, more)],
        env=env,
        resources={"limits": {"nvidia.com/gpu": "8"}},
    )
    templates = {"size": size, "workerTemplate": {"spec": {"containers": [started]}}}
    if leader:
        templates["leaderTemplate"] = {"spec": {"containers": [container([leader])]}}
    return object_of(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"leaderWorkerTemplate": templates}
    )


def verdicts(subject: dict[str, Any]) -> list[Verdict]:
    return [judge(Envelope(proposal=server), LIBRARY, "0.32.0")[0] for server in servers(subject)]


def test_all_pods_of_a_group_start() -> None:
    """What vLLM 0.32.0 says of ranks 0 and 8 of 16, too (asked of it)."""
    [verdict] = verdicts(group(2))
    assert verdict.outcome is Outcome.ACCEPTED
    assert not [f for f in verdict.findings if f.undecided]


@pytest.mark.parametrize(
    ("size", "leader", "named"),
    [
        (2, "", ["LWS_WORKER_INDEX=0", "LWS_WORKER_INDEX=1"]),
        (4, "", ["LWS_WORKER_INDEX=0", "LWS_WORKER_INDEX=1", "LWS_WORKER_INDEX=3"]),
        (4, "m", ["LWS_WORKER_INDEX=1", "LWS_WORKER_INDEX=2", "LWS_WORKER_INDEX=3"]),
        (3, "m", ["LWS_WORKER_INDEX=1", "LWS_WORKER_INDEX=2"]),
        (2, "m", []),
        (1, "", []),
        ("many", "", []),
    ],
)
def test_the_first_pods_and_the_last_are_looked_at(
    size: Any, leader: str, named: list[str]
) -> None:
    server = servers(group(size, leader=leader))[-1]
    assert [name for name, _ in server.pods] == named
    assert not any(pod.pods for _, pod in server.pods)


def test_a_pod_that_does_not_start_is_named() -> None:
    """A rank beyond the ranks: vLLM refuses it in the pods that have it."""
    [verdict] = verdicts(group(2, ranks="8"))
    assert verdict.outcome is Outcome.REJECTED
    [found] = [f for f in verdict.findings if f.rule == "parallel-dp-rank-range"]
    assert found.message.startswith("with LWS_WORKER_INDEX=1: ")
    assert found.location is not None
    assert found.location.pointer == (
        "/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/command/2"
    )


def test_what_is_wrong_in_all_pods_is_said_once() -> None:
    [verdict] = verdicts(group(2, more="--max-model-length 8"))
    [found] = [f for f in verdict.findings if f.severity.value == "error"]
    assert found.rule == "cli-unknown-flag"
    assert not found.message.startswith("with ")


def test_an_unknown_size_leaves_the_ranks_open() -> None:
    [verdict] = verdicts(group("many"))
    assert verdict.outcome is Outcome.UNDETERMINED


def test_a_server_that_asks_for_no_rank_is_judged_once() -> None:
    subject = group(2)
    [started] = subject["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    started["command"] = ["vllm", "serve", "m"]
    [server] = servers(subject)
    assert server.pods == ()


def test_ranks_as_kubernetes_puts_them_in() -> None:
    subject = group(3)
    [started] = subject["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    started["command"] = ["vllm", "serve", "m"]
    started["args"] = ["--nnodes=2", "--node-rank=$(LWS_WORKER_INDEX)", "-tp=16"]
    [verdict] = verdicts(subject)
    assert verdict.outcome is Outcome.REJECTED
    assert {f.message.partition(": ")[0] for f in verdict.findings if "LWS" in f.message} == {
        "with LWS_WORKER_INDEX=2"
    }


def test_a_correction_holds_for_all_pods_and_is_final() -> None:
    subject = group(2, more="--return-sampling-mask")
    assert answered(review(subject))["allowed"] is False
    patch = patch_of(review(subject))
    mended = patched(subject, patch)
    assert "--logprobs-mode processed_logprobs" in json.dumps(mended)
    assert [v.outcome for v in verdicts(mended)] == [Outcome.ACCEPTED]
    assert answered(review(mended))["allowed"] is True
    assert patch_of(review(mended)) == []


def test_a_text_is_corrected_where_it_stands() -> None:
    text = yaml.safe_dump(group(2, more="--return-sampling-mask"), default_style=None)
    [server] = read_kubernetes(text)
    [verdict] = judge(Envelope(proposal=server), LIBRARY, "0.32.0")
    assert verdict.corrected is not None
    mended = verdict.corrected["kubernetes"]
    assert "--logprobs-mode processed_logprobs" in mended
    [again] = read_kubernetes(mended)
    assert again.pods
    assert judge(Envelope(proposal=again), LIBRARY, "0.32.0")[0].accepted
