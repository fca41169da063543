"""Objects and reviews as the API server sends them."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any, Final

import jsonpatch

from app.catalogue import CatalogueLibrary
from app.kubernetes.mode import Mode
from app.kubernetes.review import Decision, Judge, mutated, validated
from app.proposal.envelope import Envelope
from app.validation import judge
from app.verdict.verdict import Verdict

LIBRARY: Final = CatalogueLibrary()
IMAGE: Final = "vllm/vllm-openai:v0.32.0"
BAD: Final = ["Qwen/Qwen3-8B", "--return-sampling-mask"]
GOOD: Final = ["Qwen/Qwen3-8B", "--max-model-len", "8192"]


def gate(envelope: Envelope) -> tuple[Verdict, ...]:
    """Judge as the service does."""
    return judge(envelope, LIBRARY, "0.32.0")


def container(args: list[str] | None, **members: Any) -> dict[str, Any]:
    """Give a container of vLLM 0.32.0."""
    found = {"name": "vllm", "image": IMAGE, **members}
    return found if args is None else {**found, "args": args}


def pod(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Give a Pod."""
    spec = {"containers": list(containers)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **metadata}, "spec": spec}


def deployment(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Give a Deployment."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "qwen", "namespace": "models", **metadata},
        "spec": {"template": {"metadata": {}, "spec": {"containers": list(containers)}}},
    }


def review(
    subject: dict[str, Any] | None, operation: str = "CREATE", **members: Any
) -> dict[str, Any]:
    """Give a review of the object."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "operation": operation,
        "namespace": "models",
        "userInfo": {"username": "admin"},
        "object": subject,
        "oldObject": None,
        "dryRun": False,
        **members,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def answered(data: Any, mode: Mode = Mode.ENFORCE, by: Judge = gate) -> dict[str, Any]:
    """Give the response of a validating review."""
    response: dict[str, Any] = decided(data, mode, by).body["response"]
    return response


def decided(data: Any, mode: Mode = Mode.ENFORCE, by: Judge = gate) -> Decision:
    """Give the decision of a validating review."""
    return validated(data, mode, by, "the page")


def patch_of(data: Any, by: Judge = gate) -> list[dict[str, Any]]:
    """Give the patch of a mutating review; an empty one if there is none."""
    response = mutated(data, by, "the page").body["response"]
    assert response["allowed"]
    assert ("patch" in response) == ("patchType" in response)
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    patch: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"]))
    assert patch
    return patch


def patched(subject: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply a patch as an independent library does it."""
    found: dict[str, Any] = jsonpatch.apply_patch(copy.deepcopy(subject), patch)
    return found
