"""Reviews of the API server, from what it sends to what it is answered."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from app.errors import UnknownVersion
from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of
from app.kubernetes.mode import Mode
from app.kubernetes.review import crashed
from app.proposal.envelope import Envelope
from app.proposal.suppression import Profile
from app.validation import judge
from app.verdict.finding import Finding, Severity
from app.verdict.verdict import Outcome, Verdict
from tests.kubernetes.support import (
    BAD,
    GOOD,
    IMAGE,
    LIBRARY,
    answered,
    container,
    decided,
    deployment,
    gate,
    patch_of,
    patched,
    pod,
    review,
)

UID = review(None)["request"]["uid"]


def test_what_vllm_refuses_is_refused_with_the_field() -> None:
    answer = decided(review(deployment(container(BAD)))).body
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    response = answer["response"]
    assert response["uid"] == UID
    assert response["allowed"] is False
    status = response["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert "[sampling-mask-logprobs-mode]" in status["message"]
    assert status["details"]["kind"] == "Deployment"
    assert status["details"]["name"] == "qwen"
    [cause] = status["details"]["causes"]
    assert cause["field"] == "spec.template.spec.containers[0].args[1]"
    assert cause["reason"] == "FieldValueInvalid"
    assert cause["message"] not in response.get("warnings", ())
    assert "patch" not in response


def test_what_vllm_takes_is_let_through() -> None:
    response = answered(review(deployment(container(GOOD))))
    assert response["allowed"] is True
    assert "status" not in response
    assert response["auditAnnotations"]["verdict"] == "accepted"


@pytest.mark.parametrize("mode", [Mode.AUDIT, Mode.WARN])
def test_other_modes_let_it_through(mode: Mode) -> None:
    decision = decided(review(deployment(container(BAD))), mode)
    response = decision.body["response"]
    assert decision.decision == "would-refuse"
    assert response["allowed"] is True
    assert ("warnings" in response) is (mode is Mode.WARN)
    audit = response["auditAnnotations"]
    assert audit["verdict"] == "rejected"
    assert "sampling-mask-logprobs-mode" in audit["rules"].split(",")
    assert audit["mode"] == mode.value
    assert audit["ruleset"]
    assert not any("/" in key for key in audit)


@pytest.mark.parametrize(
    "request_",
    [
        review(None, "DELETE", oldObject=deployment(container(BAD))),
        review(None, "CONNECT"),
        review({"kind": "Scale", "spec": {"replicas": 2}}, "UPDATE", subResource="scale"),
        review(deployment(container(BAD)), "UPDATE", subResource="status"),
        review(pod(container(BAD)), "UPDATE", subResource="ephemeralcontainers"),
        review(deployment({"name": "web", "image": "nginx:1"})),
        review({"apiVersion": "v1", "kind": "ConfigMap", "data": {"args": "--nope"}}),
        review(pod(container(BAD), annotations={"kubernetes.io/config.mirror": "x"})),
        review(deployment(container(BAD), deletionTimestamp="2026-11-01T00:00:00Z"), "UPDATE"),
    ],
    ids=["delete", "connect", "scale", "status", "ephemeral", "web", "map", "mirror", "deleted"],
)
def test_what_is_none_of_its_business_is_let_through_without_a_word(
    request_: dict[str, Any],
) -> None:
    decision = decided(request_)
    assert decision.decision == "ignored"
    assert decision.body["response"] == {"uid": UID, "allowed": True}


@pytest.mark.parametrize(
    ("api", "kind", "judged"),
    [
        ("apps/v1", "ReplicaSet", False),
        ("batch/v1", "Job", False),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", False),
        ("example.com/v1", "Unknown", True),
    ],
)
def test_what_a_judged_object_owns_is_not_judged_again(api: str, kind: str, judged: bool) -> None:
    owner = {"apiVersion": api, "kind": kind, "name": "o", "uid": "1", "controller": True}
    response = answered(review(pod(container(BAD), ownerReferences=[owner])))
    assert response["allowed"] is not judged


def test_a_dry_run_is_answered_alike() -> None:
    subject = deployment(container(BAD))
    assert answered(review(subject, dryRun=True)) == answered(review(subject))


def test_an_unchanged_old_violation_warns() -> None:
    old = deployment(container(BAD))
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"]["containers"][0]["args"].insert(1, "--enforce-eager")
    decision = decided(review(new, "UPDATE", oldObject=old))
    response = decision.body["response"]
    assert decision.decision == "allowed"
    assert response["allowed"] is True
    assert response["auditAnnotations"]["ratcheted"] == "true"
    assert response["warnings"][0].endswith("[sampling-mask-logprobs-mode]")
    new["spec"]["template"]["spec"]["containers"][0]["args"].append("--no-such-flag")
    response = answered(review(new, "UPDATE", oldObject=old))
    assert response["allowed"] is False
    [cause] = response["status"]["details"]["causes"]
    assert "--no-such-flag" in cause["message"]
    assert response["warnings"][0].endswith("[sampling-mask-logprobs-mode]")


def test_a_new_violation_in_an_old_object_refuses() -> None:
    old = deployment(container(GOOD))
    response = answered(review(deployment(container(BAD)), "UPDATE", oldObject=old))
    assert response["allowed"] is False


def test_names_that_are_generated_and_namespaces_of_the_request() -> None:
    subject = deployment(container(BAD), name=None, generateName="qwen-", namespace="other")
    del subject["metadata"]["name"]
    seen: list[Envelope] = []

    def judge(envelope: Envelope) -> tuple[Verdict, ...]:
        seen.append(envelope)
        return gate(envelope)

    response = answered(review(subject), by=judge)
    assert "name" not in response["status"]["details"]
    workload = seen[0].proposal.workload
    assert workload is not None
    assert (workload.name, workload.namespace) == ("qwen-", "models")


@pytest.mark.parametrize(
    ("data", "uid"),
    [
        (None, ""),
        ([], ""),
        ({"kind": "AdmissionReview"}, ""),
        ({**review(None), "apiVersion": "admission.k8s.io/v1beta1"}, UID),
        ({**review(None), "kind": "Pod"}, UID),
        ({**review(None), "request": None}, ""),
        ({**review(None), "request": {"uid": UID}}, UID),
        ({**review(None), "request": {"uid": 3, "operation": "CREATE"}}, ""),
    ],
)
def test_a_malformed_review_is_answered_in_band(data: Any, uid: str) -> None:
    decision = decided(data)
    response = decision.body["response"]
    assert decision.decision == "malformed"
    assert response["uid"] == uid
    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert decision.body == crashed(data, "x").body


@pytest.mark.parametrize(
    "subject",
    [
        {},
        {"kind": 3, "apiVersion": [], "metadata": "x", "spec": 7},
        {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": None}},
        {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [3, {"args": "x"}, {}]}},
        pod(container([], env="x", volumeMounts=7, resources={"limits": []}), annotations=3),
        pod(container([], env=[{"name": 3}, "x", {"name": "A", "valueFrom": 3}])),
        pod({"name": None, "image": None, "command": {}, "args": [None, {}, 3]}),
        pod(container([]), ownerReferences=[None, {"controller": True}]),
    ],
)
def test_odd_objects_do_not_break_it(subject: dict[str, Any]) -> None:
    assert decided(review(subject)).decision in {"ignored", "allowed", "refused"}
    assert decided(review(subject, "UPDATE", oldObject=subject)).decision in {"ignored", "allowed"}


def test_warnings_keep_to_the_budget_with_the_worst_first() -> None:
    findings = [
        Finding(rule=f"rule-{i}", severity=Severity.WARNING, message=f"{i} {'long ' * 60}")
        for i in range(100)
    ]
    worst = Finding(rule="worst", severity=Severity.ERROR, message="it\nbreaks")
    verdict = Verdict.of("0.32.0", [*findings, worst])
    response = answered(review(deployment(container(GOOD))), Mode.WARN, lambda _: (verdict,))
    warnings = response["warnings"]
    assert warnings[0] == "it breaks [worst]"
    assert all(len(text.encode()) <= 256 for text in warnings)
    assert sum(len(text.encode()) for text in warnings) <= 4096
    assert all("[rule-" in text for text in warnings[1:-1])
    assert warnings[-1] == f"{101 - len(warnings) + 1} more at the page"


def test_warnings_are_counted_in_bytes() -> None:
    long = Finding(rule="rule-id", severity=Severity.WARNING, message="日本" * 200)
    verdict = Verdict.of("0.32.0", [long])
    [text] = answered(review(deployment(container(GOOD))), by=lambda _: (verdict,))["warnings"]
    assert len(text.encode()) <= 256
    assert text.endswith("… [rule-id]")


def test_an_open_question_never_refuses_but_is_told() -> None:
    question = Finding(rule="open", severity=Severity.INFO, message="nobody knows", undecided=True)
    verdict = Verdict.of("0.32.0", [question])
    assert verdict.outcome is Outcome.UNDETERMINED
    response = answered(review(deployment(container(GOOD))), by=lambda _: (verdict,))
    assert response["allowed"] is True
    assert response["warnings"] == ["nobody knows [open]"]
    assert response["auditAnnotations"]["verdict"] == "undetermined"


def test_what_one_unknown_value_leaves_open_is_one_warning() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    args = ["m", "--speculative-config", "$(SPEC)", "--seed", "$(SEED)"]
    env = [{"name": name, "valueFrom": secret} for name in ("SPEC", "SEED")]
    several = [container(args, env=env), container(args, env=env, name="second")]
    [verdict, _] = decided(review(deployment(*several))).verdicts
    assert sum(f.undecided for f in verdict.findings) > 10
    told = [text for text in answered(review(deployment(*several)))["warnings"] if "SPEC" in text]
    assert len(told) == 2
    assert "more rules depend on it too [" in told[0]
    assert told[1].startswith("Deployment/qwen second: ")


def test_under_the_strict_profile_warnings_refuse() -> None:
    finding = Finding(rule="odd", severity=Severity.WARNING, message="odd")
    verdict = replace(Verdict.of("0.32.0", [finding]), outcome=Outcome.REJECTED)
    response = answered(review(deployment(container(GOOD))), by=lambda _: (verdict,))
    assert response["allowed"] is False
    assert response["status"]["details"]["causes"][0]["message"] == "odd [odd]"


def test_a_server_that_cannot_be_judged_says_nothing_of_the_others() -> None:
    subject = deployment(container(BAD), container(BAD, name="second"))

    def judge(envelope: Envelope) -> tuple[Verdict, ...]:
        if envelope.proposal.subject == "Deployment/qwen vllm":
            raise UnknownVersion("there is no catalogue of vLLM 9.9")
        return gate(envelope)

    response = answered(review(subject), by=judge)
    assert response["allowed"] is False
    [cause] = response["status"]["details"]["causes"]
    assert cause["field"] == "spec.template.spec.containers[1].args[1]"
    told = "Deployment/qwen vllm was not judged: there is no catalogue of vLLM 9.9"
    assert told in response["warnings"]


def test_a_version_in_an_annotation_counts_more_than_the_image() -> None:
    subject = deployment(container(GOOD), annotations={"vllm-admission/vllm-version": "0.28.0"})
    assert answered(review(subject))["auditAnnotations"]["vllm-versions"] == "0.28.0"
    subject = deployment(container(GOOD), annotations={"vllm-admission/vllm-version": "9.9"})
    decision = decided(review(subject))
    assert decision.decision == "unread"
    assert decision.body["response"]["allowed"] is True
    assert "9.9" in decision.body["response"]["warnings"][0]


def excepted(text: str) -> dict[str, Any]:
    return deployment(container(BAD), annotations={"vllm-admission/ignore": text})


def test_exceptions_with_a_reason_count() -> None:
    response = answered(review(excepted("sampling-mask-logprobs-mode: patched in our image")))
    assert response["allowed"] is True
    assert response["auditAnnotations"]["verdict"] == "accepted"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sampling-mask-logprobs-mode", "suppression-without-reason"),
        ("sampling-mask-logprob-mode: misspelt", "suppression-unknown-rule"),
        ("json-flag-invalid; x: y", "suppression-unknown-rule"),
    ],
)
def test_void_exceptions_are_told_with_their_place(text: str, rule: str) -> None:
    decision = decided(review(excepted(text)))
    assert decision.body["response"]["allowed"] is False
    [verdict] = decision.verdicts
    found = [f for f in verdict.findings if f.rule == rule]
    assert found, [f.rule for f in verdict.findings]
    assert found[0].location is not None
    assert found[0].location.pointer == "/metadata/annotations/vllm-admission~1ignore"


def test_a_big_object_is_judged() -> None:
    subject = deployment(container(BAD))
    subject["metadata"]["annotations"] = {"blob": "x" * 3_000_000}
    response = answered(review(subject))
    assert response["allowed"] is False
    assert len(str(response)) < 5_000


def test_custom_resources_are_refused_with_fields_of_their_own() -> None:
    serving = """
applications:
- args:
    llm_configs:
    - model_loading_config: {model_id: m}
      engine_kwargs: {return_sampling_mask: true}
"""
    ray = {"apiVersion": "ray.io/v1", "kind": "RayService", "spec": {"serveConfigV2": serving}}
    model = {
        "apiVersion": "kubeai.org/v1",
        "kind": "Model",
        "spec": {"engine": "VLLM", "url": "hf://m", "args": ["--return-sampling-mask"]},
    }
    for subject, field in ((ray, "spec.serveConfigV2"), (model, "spec.args[0]")):
        response = answered(review(subject))
        assert response["allowed"] is False
        assert response["status"]["details"]["causes"][0]["field"] == field
        mended = patched(subject, patch_of(review(subject)))
        assert answered(review(mended))["allowed"] is True


def test_a_script_that_cannot_be_read_leaves_its_server_open() -> None:
    odd = container(["vllm serve m 'unclosed"], name="odd", command=["sh", "-c"])
    response = answered(review(deployment(odd)))
    assert response["allowed"] is True
    assert response["auditAnnotations"]["verdict"] == "undetermined"
    assert "[kubernetes-script-unread]" in response["warnings"][0]
    response = answered(review(deployment(odd, container(BAD))))
    assert response["allowed"] is False
    assert patch_of(review(deployment(odd))) == []


def test_another_image_with_the_same_fault_is_warned_of() -> None:
    older = deployment(container(BAD, image=IMAGE.replace("0.32.0", "0.31.0")))
    response = answered(review(deployment(container(BAD)), "UPDATE", oldObject=older))
    assert response["allowed"] is True
    assert response["auditAnnotations"]["ratcheted"] == "true"


def test_an_exception_that_one_of_two_servers_uses_is_used() -> None:
    rule = "kubernetes-readiness-missing"
    ready = {"readinessProbe": {"httpGet": {"path": "/health", "port": 8000}}}
    servers = container(GOOD), container([*GOOD, "--port", "8001"], name="second", **ready)
    reason = {"vllm-admission/ignore": f"{rule}: it is behind a queue"}
    for order in (servers, servers[::-1]):
        subject = deployment(*order, annotations=reason)
        found = [f.rule for v in decided(review(subject)).verdicts for f in v.findings]
        assert "suppression-unused" not in found
        assert rule not in found
    without = deployment(container([*GOOD], **ready), annotations=reason)
    [verdict] = decided(review(without)).verdicts
    assert "suppression-unused" in [f.rule for f in verdict.findings]


def test_the_audit_log_has_the_exceptions_that_were_used() -> None:
    rule = "sampling-mask-logprobs-mode"
    subject = deployment(
        container(BAD),
        annotations={"vllm-admission/ignore": f"{rule}: our fork can; lora-rank: not needed"},
    )
    response = answered(review(subject))
    assert response["allowed"] is True
    assert response["auditAnnotations"]["exceptions"] == f"{rule}: our fork can"
    assert "exceptions" not in answered(review(deployment(container(BAD))))["auditAnnotations"]


def test_the_strict_profile_accepts_what_only_seemed_unused() -> None:
    rule = "kubernetes-readiness-missing"
    ready = {"readinessProbe": {"httpGet": {"path": "/health", "port": 8000}}}
    share = ["--gpu-memory-utilization", "0.4"]
    subject = deployment(
        container([*GOOD, *share]),
        container([*GOOD, *share, "--port", "8001"], name="second", **ready),
        annotations={"vllm-admission/ignore": f"{rule}: it is behind a queue"},
    )
    first, *more = servers_in([manifest_of(subject)])
    envelope = Envelope(proposal=first, more=tuple(more), profile=Profile.STRICT)
    verdicts = judge(envelope, LIBRARY, "0.32.0")
    assert [v.outcome for v in verdicts] == [Outcome.ACCEPTED] * 2, [v.findings for v in verdicts]


def test_an_object_of_very_many_servers_is_answered_in_time() -> None:
    subject = {"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "x"}}
    pods = [{"containers": [container(GOOD)]} for _ in range(70)]
    decision = decided(review({**subject, "spec": pods}))
    assert len(decision.verdicts) == 64
    warnings = decision.body["response"]["warnings"]
    assert "only the first 64 servers of this object were judged" in warnings
