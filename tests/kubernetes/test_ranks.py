"""Pods of a group as data-parallel ranks of one server.

Real vLLM 0.28.0 (the first) and 0.32.0 (both) ended with these messages when they were started so.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from app.verdict.finding import Finding
from tests.kubernetes.support import container
from tests.kubernetes.test_kinds import object_of, servers, verdict_of

RULE = "kubernetes-group-headless"
RANKS = ("m", "-dp", "4", "-dpl", "2", "--data-parallel-address", "10.0.0.1")
FIRST, SECOND = ("--data-parallel-start-rank", "0"), ("--data-parallel-start-rank", "2")
HEADLESS = ("--headless",)


def group(leader: tuple[str, ...], worker: tuple[str, ...], size: int = 2) -> dict[str, Any]:
    def template(*args: str) -> dict[str, Any]:
        return {"spec": {"containers": [container(list(args))]}}

    templates = {
        "size": size,
        "leaderTemplate": template(*leader),
        "workerTemplate": template(*worker),
    }
    return object_of(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"leaderWorkerTemplate": templates}
    )


def told(subject: dict[str, Any]) -> list[Finding]:
    return [f for s in servers(subject) for f in verdict_of(s).findings if f.rule == RULE]


@pytest.mark.parametrize(
    ("leader", "worker", "words"),
    [
        ((*RANKS, *FIRST), (*RANKS, *SECOND, *HEADLESS), "must not use --headless"),
        ((*RANKS, "-dph"), (*RANKS, *SECOND, *HEADLESS), "must not use --headless"),
        (RANKS, (*RANKS, *SECOND), "must use --headless"),
        (RANKS, (*RANKS, *SECOND, *HEADLESS), None),
        ((*RANKS, *FIRST), (*RANKS, *SECOND), None),
        # Nodes of one rank, another executor, one pod with all ranks, another server.
        ((*RANKS, "--nnodes", "2"), (*RANKS, *SECOND, "--nnodes", "2"), None),
        ((*RANKS, "-dpb", "ray"), (*RANKS, *SECOND, "-dpb", "ray"), None),
        (("m", "-dp", "4"), (*RANKS, *SECOND), None),
        ((*RANKS, *FIRST), ("m", *HEADLESS), None),
    ],
)
def test_who_answers_is_the_same_in_all_pods(
    leader: tuple[str, ...], worker: tuple[str, ...], words: str | None
) -> None:
    found = told(group(leader, worker))
    assert [words in (f.engine_message or "") for f in found if words] == [True] * bool(words)
    assert bool(found) is (words is not None)


def test_the_place_is_the_first_pod_and_the_other_is_named() -> None:
    [found] = told(group((*RANKS, *FIRST), (*RANKS, *SECOND, *HEADLESS)))
    around = "/spec/leaderWorkerTemplate/{}/spec/containers/0/args/{}"
    assert found.location is not None
    assert found.location.pointer == around.format("leaderTemplate", 8)
    assert [place.pointer for place in found.related] == [around.format("workerTemplate", 9)]
    assert "workerTemplate" in found.message
    assert found.fix is not None
    assert not found.fix.safe


def test_pods_of_other_groups_are_none_of_its() -> None:
    mixed = group((*RANKS, *FIRST), (*RANKS, *SECOND, *HEADLESS))
    other = group(RANKS, (*RANKS, *SECOND, *HEADLESS))
    other["metadata"] = {"name": "other"}
    assert len(told(mixed)) == 1
    found = [f for s in servers(mixed, other) for f in verdict_of(s).findings if f.rule == RULE]
    assert len(found) == 1


def test_a_service_of_kserve_has_its_groups_apart() -> None:
    text = """
    data: &group
      parallelism: {data: 16, dataLocal: 8, expert: true, tensor: 1}
      template: {containers: [{name: main, image: 'vllm/vllm-openai:v0.32.0'}]}
      worker: {containers: [{name: main, image: 'vllm/vllm-openai:v0.32.0'}]}
    """
    part = yaml.safe_load(text)["data"]
    spec = {"model": {"name": "m"}, **part, "prefill": part}
    found = told(object_of("serving.kserve.io/v1alpha1", "LLMInferenceService", spec))
    named = [
        ("prefill" in (f.location.pointer or ""), "prefill" in f.message)
        for f in found
        if f.location
    ]
    assert named == [(False, False), (True, True)]
