"""Rendering the manifests with the real programs, and what is asked of every one of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml

SCHEMAS: Final = ("1.30", "1.33", "1.37")
# Kinds of other projects, for which there are no schemas here.
FOREIGN: Final = {"cert-manager.io/v1", "monitoring.coreos.com/v1"}

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


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def check_schemas(manifests: Sequence[Manifest]) -> None:
    """Hold manifests to the schemas of the Kubernetes releases, unknown fields refused."""
    for manifest in manifests:
        if manifest["apiVersion"] not in FOREIGN:
            for release in SCHEMAS:
                kubernetes_validate.validate(manifest, release, strict=True)


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
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            yield f"{name}: a volume of the host"
    served = pod.get("restartPolicy", "Always") == "Always"
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        yield from _container_faults(f"{name}/{container['name']}", container, served)


def _container_faults(name: str, container: Manifest, served: bool) -> Iterator[str]:
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
        yield f"{name}: may gain privileges"
    if security.get("readOnlyRootFilesystem") is not True:
        yield f"{name}: writable root file system"
    if security.get("capabilities", {}).get("drop") != ["ALL"]:
        yield f"{name}: keeps capabilities"
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
