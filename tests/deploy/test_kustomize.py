"""The kustomize files, built by kubectl."""

import json
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import (
    Programs,
    check_schemas,
    dangling,
    faults,
    find,
    generator,
    pod_specs,
)

OVERLAYS = ("webhook", "webhook-self-signed", "proxy", "sidecar")
COMPONENTS = ("autoscaling", "policy", "service-monitor")


def test_generated_files_are_the_charts_text(programs: Programs) -> None:
    files: dict[Path, str] = generator().files(str(programs.tools / "helm"))
    stale = [path.name for path, text in files.items() if path.read_text() != text]
    assert not stale, "run `make manifests`"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_builds_valid_and_hardened_manifests(programs: Programs, overlay: str) -> None:
    manifests = programs.kustomize(programs.deploy / "kustomize" / "overlays" / overlay)
    check_schemas(manifests)
    assert [fault for name, pod in pod_specs(manifests) for fault in faults(name, pod)] == []
    assert list(dangling(manifests)) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_goes_with_an_overlay(
    programs: Programs, component: str, tmp_path: Path
) -> None:
    kustomize = programs.deploy / "kustomize"
    (tmp_path / "kustomize").symlink_to(kustomize)
    own = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["kustomize/base"],
        "components": [f"kustomize/components/{component}"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    base = programs.kustomize(kustomize / "base")
    built = programs.kustomize(tmp_path)
    check_schemas(built)
    assert list(dangling(built)) == []
    assert len(built) > len(base)


def test_the_webhook_overlay_is_what_the_chart_installs(programs: Programs) -> None:
    """The kustomize patches say again what the chart's conditions say: hold them together."""
    built = programs.kustomize(programs.deploy / "kustomize" / "overlays" / "webhook")
    wanted = programs.template("webhook.mutate.enabled=true")
    for kind in ("Deployment", "Service", "NetworkPolicy"):
        (ours,), (theirs,) = find(built, kind), find(wanted, kind)
        assert _normal(ours["spec"]) == _normal(theirs["spec"]), kind


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _normal(value: object) -> object:
    """Without order of lists, and without the names that a release gives."""
    if isinstance(value, dict):
        labels = ("app.kubernetes.io/managed-by", "app.kubernetes.io/instance")
        return {k: _normal(v) for k, v in value.items() if k not in labels}
    if isinstance(value, list):
        return sorted((_normal(v) for v in value), key=_text)
    return (
        value.replace("gate-vllm-admission", "vllm-admission") if isinstance(value, str) else value
    )


def test_the_sidecar_is_up_before_vllm_and_outlives_it(programs: Programs) -> None:
    manifests = programs.kustomize(programs.deploy / "kustomize" / "overlays" / "sidecar")
    (deployment,) = find(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (gate,), (vllm,) = pod["initContainers"], pod["containers"]
    assert gate["restartPolicy"] == "Always"
    assert gate["startupProbe"]["httpGet"]["path"] == "/livez"
    stop = " ".join(vllm["lifecycle"]["preStop"]["exec"]["command"])
    assert "/drain" in stop
    waits = int(stop.split("timeout=")[1].split(")")[0])
    settings = {v["name"]: v["value"] for v in gate["env"]}
    # The gate answers before the hook gives up, and the hook before the kubelet does.
    drains = int(settings["VLLM_ADMISSION_DRAIN_SECONDS"])
    assert 60 <= drains < drains + 10 < waits < waits + 30 < pod["terminationGracePeriodSeconds"]
    # What the gate checks requests against is what vLLM is started with.
    words = [part for arg in vllm["args"] for part in arg.split("=", 1)]
    assert settings["VLLM_ADMISSION_SERVE_CONFIG"].split()[2:] == words


def test_what_befalls_the_gate_does_not_restart_vllm(programs: Programs) -> None:
    manifests = programs.kustomize(programs.deploy / "kustomize" / "overlays" / "sidecar")
    (deployment,) = find(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (gate,), (vllm,) = pod["initContainers"], pod["containers"]
    port = next(arg.partition("=")[2] for arg in vllm["args"] if arg.startswith("--port"))
    for probe in (vllm["startupProbe"], vllm["livenessProbe"]):
        assert f":{port}/health" in probe["exec"]["command"][-1]
        # What is killed for hanging does not drain for the pod's ten minutes first.
        assert probe["terminationGracePeriodSeconds"] <= 60
    # Whoever sends requests is told of the whole way.
    assert vllm["readinessProbe"]["httpGet"]["port"] == gate["ports"][0]["containerPort"]
    # The gate itself is ready without vLLM, which is not to be started twice over.
    assert gate["readinessProbe"]["httpGet"]["path"] == "/readyz"
