"""Patches of mutating reviews, applied by an independent library."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.kubernetes.json_patch import patch_between
from app.kubernetes.review import mutated
from tests.kubernetes.support import (
    BAD,
    GOOD,
    answered,
    container,
    deployment,
    gate,
    patch_of,
    patched,
    pod,
    review,
)

SCRIPT = "set -e\nexec vllm serve Qwen/Qwen3-8B \\\n  --return-sampling-mask\n"
BROKEN = [
    pytest.param(container(BAD), id="args"),
    pytest.param(container(["serve", *BAD], command=["vllm"]), id="command and args"),
    pytest.param(container(None, command=["vllm", "serve", *BAD]), id="command alone"),
    pytest.param(container(None, command=["sh", "-c", SCRIPT]), id="script in command"),
    pytest.param(container([SCRIPT], command=["bash", "-c"]), id="script in args"),
    pytest.param(container([*BAD, "--max-model-len", "1k"]), id="more"),
    pytest.param(
        container(["$(MODEL)", "--return-sampling-mask"], env=[{"name": "MODEL", "value": "m"}]),
        id="variable",
    ),
    pytest.param(
        container(GOOD, env=[{"name": "VLLM_PORT", "value": "tcp://10.0.0.1:80"}]), id="env"
    ),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_patch_makes_it_acceptable_and_is_needed_once(broken: dict[str, Any]) -> None:
    subject = deployment({"name": "sidecar", "image": "busybox:1"}, broken)
    assert answered(review(subject))["allowed"] is False
    patch = patch_of(review(subject))
    if not patch:  # some findings have no fix that gives nothing up
        assert broken.get("env") == [{"name": "VLLM_PORT", "value": "tcp://10.0.0.1:80"}]
        return
    mended = patched(subject, patch)
    assert answered(review(mended))["allowed"] is True
    assert patch_of(review(mended)) == []
    elsewhere = copy.deepcopy(mended)
    elsewhere["spec"]["template"]["spec"]["containers"][1] = broken
    assert elsewhere == subject  # nothing else was touched


def test_a_patch_says_what_it_does_and_no_more() -> None:
    patch = patch_of(review(deployment(container(BAD))))
    args = "/spec/template/spec/containers/0/args"
    assert patched(deployment(container(BAD)), patch)["spec"]["template"]["spec"]["containers"][0][
        "args"
    ] == [*BAD, "--logprobs-mode", "processed_logprobs"]
    assert [op["op"] for op in patch] == ["add", "add"]
    assert all(op["path"].startswith(f"{args}/") for op in patch)


def test_what_is_replaced_is_tested_first() -> None:
    patch = patch_of(review(deployment(container(["m", "--enforce-eager=true"]))))
    path = "/spec/template/spec/containers/0/args/1"
    assert patch == [
        {"op": "test", "path": path, "value": "--enforce-eager=true"},
        {"op": "replace", "path": path, "value": "--enforce-eager"},
    ]


def test_several_servers_are_mended_in_one_patch() -> None:
    subject = pod(container(BAD), container(BAD, name="second"))
    mended = patched(subject, patch_of(review(subject)))
    assert answered(review(mended))["allowed"] is True


@pytest.mark.parametrize(
    "request_",
    [
        review(deployment(container(GOOD))),
        review(pod(container(BAD)), "UPDATE", oldObject=pod(container(BAD))),
        review(None, "DELETE", oldObject=pod(container(BAD))),
        review(deployment(container(BAD)), "UPDATE", subResource="scale"),
        review(pod(container(BAD), annotations={"kubernetes.io/config.mirror": "x"})),
        review(pod({"name": "web", "image": "nginx", "args": ["--return-sampling-mask"]})),
        review(deployment(container(["m", "--no-such-flag-anywhere-at-all", "1"]))),
    ],
    ids=["good", "pod update", "delete", "scale", "mirror", "web", "no safe fix"],
)
def test_what_must_not_or_need_not_be_changed_is_not(request_: dict[str, Any]) -> None:
    assert patch_of(request_) == []


def test_an_update_of_a_template_is_mended() -> None:
    subject = deployment(container(BAD))
    patch = patch_of(review(subject, "UPDATE", oldObject=deployment(container(GOOD))))
    assert answered(review(patched(subject, patch)))["allowed"] is True


FLAGS = st.lists(
    st.sampled_from(
        [
            ["--return-sampling-mask"],
            ["--enable-auto-tool-choice"],
            ["--logprobs-mode", "raw_logprobs"],
            ["--logprobs-mode=raw_logits"],
            ["--tool-call-parser", "hermes"],
            ["--max-model-len", "32k"],
            ["--max_num_seqs=8"],
            ["--enforce-eager"],
            ["--served-model-name", "a", "b"],
            ["--generation-config", "vllm"],
        ]
    ),
    max_size=5,
)
VARIABLES: list[dict[str, Any]] = [
    {"name": "VLLM_LOGGING_LEVEL", "value": "debug"},
    {"name": "HF_HOME", "value": "/data"},
    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
]
ENV = st.lists(st.sampled_from(VARIABLES), max_size=2, unique_by=lambda entry: entry["name"])
SHAPE = st.sampled_from(["args", "command", "split", "script"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FLAGS, ENV, SHAPE)
def test_any_patch_is_idempotent_and_makes_what_the_gate_accepts(
    flags: list[list[str]], env: list[dict[str, Any]], shape: str
) -> None:
    words = ["org/model", *(word for flag in flags for word in flag)]
    made = {
        "args": container(words),
        "command": container(None, command=["vllm", "serve", *words]),
        "split": container(words, command=["vllm", "serve"]),
        "script": container([f"exec vllm serve {' '.join(words)}"], command=["sh", "-c"]),
    }[shape]
    subject = deployment(made | ({"env": env} if env else {}))
    patch = patch_of(review(subject))
    mended = patched(subject, patch)
    if patch:
        assert answered(review(subject))["allowed"] is False
        assert answered(review(mended))["allowed"] is True
        assert patch_of(review(mended)) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "~", "/", "~1"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["a", "b", "~", "a/b", ""]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(JSON, JSON)
def test_a_patch_leads_from_any_object_to_any_other(old: Any, new: Any) -> None:
    patch = list(patch_between(old, new))
    assert jsonpatch.apply_patch(copy.deepcopy(old), patch) == new
    assert bool(patch) is (old != new)


def test_who_sent_it_and_the_audit_log_are_told_what_was_changed() -> None:
    response = mutated(review(deployment(container(BAD))), gate, "the page").body["response"]
    assert response["warnings"] == [
        "changed by vllm-admission: set --logprobs-mode processed_logprobs"
    ]
    assert response["auditAnnotations"]["fixes"] == "set --logprobs-mode processed_logprobs"
    unchanged = mutated(review(deployment(container(GOOD))), gate, "the page").body["response"]
    assert unchanged.keys() == {"uid", "allowed"}


def test_servers_beside_one_of_an_unknown_version_are_mended() -> None:
    odd = container(GOOD, name="odd", image="vllm/vllm-openai:v9.9.0")
    subject = pod(container(BAD, name="a"), odd, container(BAD, name="b"))
    mended = patched(subject, patch_of(review(subject)))
    assert answered(review(mended))["allowed"] is True


def test_many_servers_are_mended_at_once() -> None:
    subject = pod(*(container(BAD, name=f"c{i}") for i in range(12)), container(GOOD, name="d"))
    patch = patch_of(review(subject))
    mended = patched(subject, patch)
    assert answered(review(mended))["allowed"] is True
    assert patch_of(review(mended)) == []
    assert {op["path"].split("/")[3] for op in patch} == {str(i) for i in range(12)}
