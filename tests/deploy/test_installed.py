"""The chart in a cluster in miniature: job, pod, certificates and webhooks together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from app.certificates.issue import RENEW_BEFORE, VALID
from app.certificates.serving import now
from tests.deploy.cluster import Cluster
from tests.deploy.manifests import Programs
from tests.kubernetes.support import BAD, GOOD, answered, container, deployment, pod, review

VALUES = (
    "certificate.source=self-signed",
    "webhook.mutate.enabled=true",
    "webhook.validate.failurePolicy=Fail",
)
NAMESPACES = {
    "audited": {"vllm-admission/mode": "audit"},
    "warned": {"vllm-admission/mode": "warn"},
    "enforced": {"vllm-admission/mode": "enforce"},
    "misspelt": {"vllm-admission/mode": "enforced"},
    "unlabelled": {},
    # Whoever labels these does not shut out what the cluster itself needs.
    "gates": {"vllm-admission/mode": "enforce"},
    "kube-system": {"vllm-admission/mode": "enforce"},
}
# What no safe fix mends.
HOPELESS = ["Qwen/Qwen3-8B", "--enable-auto-tool-choice"]


@pytest.fixture(scope="module")
def cluster(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    installed = Cluster(programs.template(*VALUES), tmp_path_factory.mktemp("tls"))
    installed.namespaces = NAMESPACES
    # So long ago that a renewal is due.
    installed.run_job(now() - VALID + RENEW_BEFORE - timedelta(days=1))
    installed.sync_volume()
    return installed


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[Cluster]:
    with cluster.pod():
        yield cluster


def bad() -> dict[str, object]:
    return deployment(container(HOPELESS))


def test_a_namespace_gets_what_its_label_says(running: Cluster) -> None:
    audited = running.create(bad(), "audited")
    assert (audited.refusal, audited.warnings) == (None, [])
    assert audited.asked == ["audit.vllm-admission.validate"]
    warned = running.create(bad(), "warned")
    assert warned.refusal is None
    assert any("serve-auto-tool-choice" in warning for warning in warned.warnings)
    enforced = running.create(bad(), "enforced")
    assert enforced.refusal is not None
    assert "serve-auto-tool-choice" in enforced.refusal
    assert running.create(deployment(container(GOOD)), "enforced").refusal is None


@pytest.mark.parametrize("namespace", ["unlabelled", "misspelt", "gates", "kube-system", "new"])
def test_others_are_not_looked_at(running: Cluster, namespace: str) -> None:
    assert running.create(bad(), namespace).asked == []


def test_nodes_and_other_kinds_are_not_looked_at(running: Cluster) -> None:
    node = {"username": "system:node:a", "groups": ["system:nodes", "system:authenticated"]}
    mirrored = pod(container(HOPELESS))
    assert running.create(mirrored, "enforced", node).asked == []
    assert running.create(mirrored, "enforced", {"username": "nobody"}).refusal is not None
    assert running.create({**bad(), "kind": "Secret", "apiVersion": "v1"}, "enforced").asked == []


def owned(api: str, kind: str) -> dict[str, object]:
    owner = {"apiVersion": api, "kind": kind, "name": "o", "controller": True}
    return pod(container(HOPELESS), ownerReferences=[owner])


LET_ALONE = {
    "of a ReplicaSet": owned("apps/v1", "ReplicaSet"),
    "of a StatefulSet": owned("apps/v1", "StatefulSet"),
    "of a Job": owned("batch/v1", "Job"),
    "of a LeaderWorkerSet": owned("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    "on its way out": pod(container(HOPELESS), deletionTimestamp="2026-12-01T00:00:00Z"),
}


@pytest.mark.parametrize("subject", LET_ALONE.values(), ids=LET_ALONE)
def test_what_runs_already_is_not_asked_about(running: Cluster, subject: dict[str, object]) -> None:
    """Not even where nobody would answer: `Fail` keeps no node from being replaced."""
    assert running.create(subject, "enforced").asked == []
    # The gate says the same, were it asked.
    assert answered(review(subject))["allowed"] is True


@pytest.mark.parametrize(
    ("api", "kind"),
    [("serving.kserve.io/v1beta1", "InferenceService"), ("ray.io/v1", "RayCluster")],
)
def test_what_another_controller_makes_is_judged(running: Cluster, api: str, kind: str) -> None:
    assert running.create(owned(api, kind), "enforced").refusal is not None


def test_what_can_be_mended_is_mended_once_and_then_accepted(running: Cluster) -> None:
    mended = running.create(deployment(container(BAD)), "enforced")
    assert mended.refusal is None
    assert "mend.vllm-admission.mutate" in mended.asked
    again = running.create(mended.object, "enforced")
    assert again.object == mended.object
    assert running.create(deployment(container(BAD)), "audited").object == deployment(
        container(BAD)
    )


def test_an_old_violation_may_be_scaled(running: Cluster) -> None:
    scaled = bad()
    scaled["spec"] = {**bad()["spec"], "replicas": 3}  # type: ignore[dict-item]  # a mapping
    assert running.update(bad(), scaled, "enforced").refusal is None
    assert running.update(deployment(container(GOOD)), scaled, "enforced").refusal is not None


def test_the_certificate_is_renewed_and_no_call_fails(running: Cluster) -> None:
    ended = threading.Event()
    refusals: set[str | None] = set()

    def create_for_ever() -> int:
        calls = 0
        while not ended.is_set():
            refusals.add(running.create(bad(), "enforced").refusal)
            calls += 1
        return calls

    before = running.secrets["gate-vllm-admission-tls"]["data"]
    with ThreadPoolExecutor(2) as clients:
        calling = [clients.submit(create_for_ever) for _ in range(2)]
        try:
            running.run_job(now())
            running.sync_volume()
        finally:
            ended.set()
        assert all(calls.result() for calls in calling)
    after = running.secrets["gate-vllm-admission-tls"]["data"]
    assert after["tls.crt"] != before["tls.crt"]
    assert len(refusals) == 1
    assert "failed calling" not in str(refusals)


def test_when_nobody_answers_only_what_enforces_is_shut(cluster: Cluster) -> None:
    gone = Cluster(cluster.manifests, cluster.folder)
    gone.namespaces = NAMESPACES
    assert "failed calling webhook" in str(gone.create(bad(), "enforced").refusal)
    for namespace in ("audited", "warned", "unlabelled", "gates", "kube-system"):
        assert gone.create(bad(), namespace).refusal is None
