"""What our own gate says of the manifests that we ship."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from app.catalogue import CatalogueLibrary
from app.errors import InvalidEnvelope
from app.kubernetes.mode import Mode
from app.kubernetes.review import Decision, validated
from app.proposal.envelope import Envelope
from app.proposal.read import read_text
from app.proposal.shell import parse_command
from app.rules.evaluate import validate
from app.validation import judge
from app.verdict.finding import Severity
from app.verdict.verdict import Verdict
from tests.deploy.manifests import Manifest, Programs, find

LIBRARY = CatalogueLibrary()


def gate(envelope: Envelope) -> tuple[Verdict, ...]:
    return judge(envelope, LIBRARY, "0.32.0")


def decisions(manifests: Sequence[Manifest]) -> list[Decision]:
    def review(subject: Manifest) -> Any:
        request = {"uid": "1", "operation": "CREATE", "object": subject}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}

    return [validated(review(manifest), Mode.ENFORCE, gate, "-") for manifest in manifests]


@pytest.mark.parametrize("overlay", ["webhook", "webhook-self-signed", "proxy"])
def test_our_own_service_is_no_server_of_vllm(programs: Programs, overlay: str) -> None:
    manifests = programs.kustomize(programs.deploy / "kustomize" / "overlays" / overlay)
    assert {decision.decision for decision in decisions(manifests)} == {"ignored"}
    with pytest.raises(InvalidEnvelope, match="no vLLM server"):
        read_text(yaml.safe_dump_all(manifests), source="-")


def test_the_chart_is_none_either(programs: Programs) -> None:
    manifests = programs.template("proxy.enabled=true", "proxy.backendUrl=http://vllm:8000")
    assert {decision.decision for decision in decisions(manifests)} == {"ignored"}


def test_the_example_of_a_sidecar_passes_without_a_word(programs: Programs) -> None:
    manifests = programs.kustomize(programs.deploy / "kustomize" / "overlays" / "sidecar")
    answers = [d for d in decisions(manifests) if d.decision != "ignored"]
    [response] = [answer.body["response"] for answer in answers]
    assert response["allowed"] is True
    assert "warnings" not in response
    [verdict] = gate(read_text(json.dumps({"kind": "List", "items": manifests}), source="-"))
    assert verdict.accepted
    assert [f for f in verdict.findings if f.severity is not Severity.INFO] == []


def test_what_the_proxy_is_told_of_its_backend_is_admitted(programs: Programs) -> None:
    manifests = programs.kustomize(programs.deploy / "kustomize" / "overlays" / "proxy")
    (deployment,) = find(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "serve")
    (volume,) = (v for v in pod["volumes"] if v["name"] == "serve")
    (served,) = (
        m
        for m in find(manifests, "ConfigMap")
        if m["metadata"]["name"] == volume["configMap"]["name"]
    )
    path = given["VLLM_ADMISSION_SERVE_CONFIG"]
    text = served["data"][path.removeprefix(f"{mount['mountPath']}/")]
    catalogue = LIBRARY.get(given["VLLM_ADMISSION_VLLM_VERSION"])
    assert validate(parse_command(text), catalogue).accepted
