"""Rendering the manifests with the real programs, and what is asked of every one of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import kubernetes_validate
import yaml

SCHEMAS: Final = ("1.30", "1.33", "1.37")
# Kinds of other projects, for which there are no schemas here.
FOREIGN: Final = {"cert-manager.io/v1", "monitoring.coreos.com/v1"}

# What the restricted pod security standard allows.
_VOLUMES: Final = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Programs:
    tools: Path
    deploy: Path

    @property
    def chart(self) -> Path:
        return self.deploy / "helm" / "vllm-admission"

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.tools / "helm"), *words]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def template(self, *values: str, namespace: str = "gates") -> list[Manifest]:
        words = [word for value in values for word in ("--set", value)]
        done = self.helm("template", "gate", str(self.chart), "--namespace", namespace, *words)
        assert done.returncode == 0, done.stderr
        return documents(done.stdout)

    def kustomize(self, path: Path) -> list[Manifest]:
        command = [str(self.tools / "kubectl"), "kustomize", str(path)]
        return documents(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def generator() -> ModuleType:
    """The program that writes the generated files: deploy/manifests.py."""
    path = Path(__file__).parents[2] / "deploy" / "manifests.py"
    spec = importlib.util.spec_from_file_location("manifests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def check_schemas(manifests: Sequence[Manifest]) -> None:
    """Hold manifests to the schemas of the Kubernetes releases, unknown fields refused."""
    for manifest in manifests:
        if manifest["apiVersion"] not in FOREIGN:
            _check_schemas(json.dumps(manifest))


@cache
def _check_schemas(text: str) -> None:
    """Check one, which is the same in most variants."""
    for release in SCHEMAS:
        kubernetes_validate.validate(json.loads(text), release, strict=True)


def pod_specs(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for manifest in manifests:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        spec = manifest.get("spec", {})
        if manifest["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            yield name, spec["template"]["spec"]


def find(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def faults(name: str, pod: Manifest) -> Iterator[str]:
    """What kube-linter's defaults and the restricted pod security standard would say of a pod."""
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        yield f"{name}: may run as root"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{name}: no seccomp profile"
    for switch in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if pod.get(switch):
            yield f"{name}: {switch}"
    if pod.get("enableServiceLinks", True):
        yield f"{name}: service links"
    if security.get("sysctls"):
        yield f"{name}: sysctls"
    for volume in pod.get("volumes", ()):
        if not _VOLUMES & volume.keys():
            yield f"{name}: a volume that is not allowed, {volume['name']}"
    served = pod.get("restartPolicy", "Always") == "Always"
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        yield from _container_faults(f"{name}/{container['name']}", container, served)


def _container_faults(name: str, container: Manifest, served: bool) -> Iterator[str]:
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
        yield f"{name}: may gain privileges"
    if security.get("readOnlyRootFilesystem") is not True:
        yield f"{name}: writable root file system"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{name}: keeps capabilities"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield f"{name}: a port of the host"
    names = [variable["name"] for variable in container.get("env", ())]
    if len(names) != len(set(names)):
        yield f"{name}: a variable twice"
    _, _, tag = container["image"].rpartition("/")[2].partition(":")
    if tag in {"", "latest"} and "@sha256:" not in container["image"]:
        yield f"{name}: image without a version"
    resources = container.get("resources", {})
    for side in ("requests", "limits"):
        for resource in ("cpu", "memory"):
            if resource not in resources.get(side, {}):
                yield f"{name}: no {side} of {resource}"
    if served:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe not in container:
                yield f"{name}: no {probe}"
    for variable in container.get("env", ()):
        secret = any(w in variable["name"].lower() for w in ("token", "secret", "password"))
        if secret and "value" in variable:
            yield f"{name}: {variable['name']} in the open"


def dangling(manifests: Sequence[Manifest]) -> Iterator[str]:
    """What refers to an object, a pod or a port that is not there."""
    there = {(m["kind"], m["metadata"]["name"]) for m in manifests}
    pods = [
        spec["template"]
        for manifest in manifests
        for spec in [manifest.get("spec", {}).get("jobTemplate", manifest).get("spec", {})]
        if "template" in spec
    ]
    for manifest in manifests:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        for kind, referred in _references(manifest):
            if (kind, referred) not in there:
                yield f"{name}: there is no {kind} {referred}"
        selector = _selector(manifest)
        selected = [p for p in pods if selector.items() <= p["metadata"]["labels"].items()]
        if selector and not selected:
            yield f"{name}: selects nothing"
        ports = {
            port["name"]
            for pod in selected
            for member in ("containers", "initContainers")
            for container in pod["spec"].get(member, ())
            for port in container.get("ports", ())
        }
        for port in _ports(manifest):
            if port not in ports:
                yield f"{name}: there is no port {port}"


def _references(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    if "roleRef" in manifest:
        for reference in (manifest["roleRef"], *manifest["subjects"]):
            yield reference["kind"], reference["name"]
    if "scaleTargetRef" in spec:
        yield spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]
    if "policyName" in spec:
        yield "ValidatingAdmissionPolicy", spec["policyName"]
    if "issuerRef" in spec and spec["issuerRef"]["kind"] == "Issuer":
        yield "Issuer", spec["issuerRef"]["name"]
    for webhook in manifest.get("webhooks", ()):
        yield "Service", webhook["clientConfig"]["service"]["name"]
    for _, pod in pod_specs([manifest]):
        if "serviceAccountName" in pod:
            yield "ServiceAccount", pod["serviceAccountName"]
        for volume in pod.get("volumes", ()):
            if "configMap" in volume:
                yield "ConfigMap", volume["configMap"]["name"]


def _selector(manifest: Manifest) -> dict[str, str]:
    """Give the labels by which it selects pods."""
    spec = manifest.get("spec", {})
    selector = spec.get("podSelector", spec.get("selector", {}))
    labels: dict[str, str] = selector.get("matchLabels", {})
    return spec["selector"] if manifest["kind"] == "Service" else labels


def _ports(manifest: Manifest) -> Iterator[object]:
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        yield from (port["targetPort"] for port in spec["ports"])
    if manifest["kind"] == "NetworkPolicy":
        yield from (port["port"] for rule in spec["ingress"] for port in rule["ports"])
    if manifest["kind"] == "Deployment":
        for container in spec["template"]["spec"]["containers"]:
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                port = container.get(name, {}).get("httpGet", {}).get("port")
                if isinstance(port, str):
                    yield port
