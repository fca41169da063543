"""The Helm chart, rendered by Helm."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from app.settings import Settings
from tests.deploy.manifests import Manifest, Programs, check_schemas, faults, find, pod_specs

VARIANTS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "self-signed": ("certificate.source=self-signed", "webhook.mutate.enabled=true"),
    "provided": ("certificate.source=provided", "certificate.secretName=mine"),
    "issuer": ("certificate.issuerRef.kind=ClusterIssuer", "certificate.issuerRef.name=ours"),
    "proxy": (
        "webhook.enabled=false",
        "proxy.enabled=true",
        "proxy.backendUrl=http://vllm:8000",
        "proxy.vllmVersion=0.32.0",
        "proxy.serveConfig=vllm serve m",
        "networkPolicy.from[0].podSelector.matchLabels.trains=yes",
    ),
    "everything": (
        "proxy.enabled=true",
        "proxy.backendUrl=http://vllm:8000",
        "autoscaling.enabled=true",
        "serviceMonitor.enabled=true",
        "policy.enabled=true",
        "policy.action=Deny",
        "webhook.mutate.enabled=true",
        "webhook.validate.failurePolicy=Fail",
        "image.digest=sha256:" + "0" * 64,
        "imagePullSecrets[0].name=registry",
        "priorityClassName=system-cluster-critical",
        "nodeSelector.disk=ssd",
        "tolerations[0].operator=Exists",
        "podLabels.team=rollouts",
        "settings.log_level=debug",
    ),
}


@pytest.fixture(scope="module", params=VARIANTS)
def manifests(request: pytest.FixtureRequest, programs: Programs) -> list[Manifest]:
    return programs.template(*VARIANTS[request.param])


def test_helm_lints_it(programs: Programs) -> None:
    done = programs.helm("lint", "--strict", str(programs.chart))
    assert done.returncode == 0, done.stdout


def test_each_variant_follows_the_schemas(manifests: list[Manifest]) -> None:
    check_schemas(manifests)


def test_each_variant_is_hardened(manifests: list[Manifest]) -> None:
    assert [fault for name, pod in pod_specs(manifests) for fault in faults(name, pod)] == []


def test_names_are_not_used_twice(manifests: list[Manifest]) -> None:
    names = [(m["apiVersion"], m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names))


def test_selectors_find_their_pods_and_no_others(manifests: list[Manifest]) -> None:
    (deployment,) = find(manifests, "Deployment")
    selector = deployment["spec"]["selector"]["matchLabels"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    (service,) = find(manifests, "Service")
    assert service["spec"]["selector"] == selector
    for job in (*find(manifests, "Job"), *find(manifests, "CronJob")):
        spec = job["spec"].get("jobTemplate", job)["spec"]
        assert not selector.items() <= spec["template"]["metadata"]["labels"].items()


def test_ports_of_the_service_exist(manifests: list[Manifest]) -> None:
    (deployment,) = find(manifests, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    (service,) = find(manifests, "Service")
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports


def test_settings_in_the_manifests_exist(manifests: list[Manifest]) -> None:
    known = {f"VLLM_ADMISSION_{name.upper()}" for name in Settings.model_fields}
    for _, pod in pod_specs(manifests):
        for container in pod["containers"]:
            assert {variable["name"] for variable in container.get("env", ())} <= known


def test_a_webhook_looks_only_at_namespaces_that_ask_and_never_at_its_own(
    manifests: list[Manifest],
) -> None:
    kinds = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
    for configuration in (m for kind in kinds for m in find(manifests, kind)):
        for webhook in configuration["webhooks"]:
            selector = webhook["namespaceSelector"]["matchExpressions"]
            opted_in, others = selector
            assert opted_in["key"] == "vllm-admission/mode"
            assert opted_in["operator"] == "In"
            assert others["operator"] == "NotIn"
            assert {"kube-system", "gates"} <= set(others["values"])
            assert webhook["admissionReviewVersions"] == ["v1"]
            assert webhook["sideEffects"] == "None"
            assert 1 <= webhook["timeoutSeconds"] <= 5
            assert all("/" not in r for rule in webhook["rules"] for r in rule["resources"])


def test_each_mode_has_a_webhook_of_its_own(programs: Programs) -> None:
    (configuration,) = find(programs.template(), "ValidatingWebhookConfiguration")
    for mode, webhook in zip(("audit", "warn", "enforce"), configuration["webhooks"], strict=True):
        assert webhook["namespaceSelector"]["matchExpressions"][0]["values"] == [mode]
        assert webhook["clientConfig"]["service"]["path"] == f"/admission/validate/{mode}"
        assert webhook["failurePolicy"] == "Ignore"


def test_the_self_signed_job_may_only_what_it_needs(programs: Programs) -> None:
    manifests = programs.template(*VARIANTS["self-signed"])
    (role,) = find(manifests, "Role")
    create, named = role["rules"]
    assert create == {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    assert named["resourceNames"] == ["gate-vllm-admission-tls"]
    assert named["verbs"] == ["get", "update"]
    (cluster_role,) = find(manifests, "ClusterRole")
    (rule,) = cluster_role["rules"]
    assert rule["resourceNames"] == ["gate-vllm-admission"]
    assert rule["verbs"] == ["get", "patch"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("replicaCount=0", "replicaCount"),
        ("replicas=3", "replicas"),
        ("webhook.validate.failurePolicy=Maybe", "failurePolicy"),
        ("webhook.timeoutSeconds=60", "timeoutSeconds"),
        ("certificate.source=letsencrypt", "source"),
        ("proxy.enabled=true", "backendUrl"),
        ("image.digest=sha256:12", "digest"),
    ],
)
def test_values_that_make_no_sense_are_refused(programs: Programs, value: str, named: str) -> None:
    done = programs.helm("template", "gate", str(programs.chart), "--set", value)
    assert done.returncode != 0
    assert named in done.stderr


def test_the_schema_is_one_and_describes_every_value(programs: Programs) -> None:
    schema: dict[str, Any] = json.loads((programs.chart / "values.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    values = yaml.safe_load((programs.chart / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, described in schema["properties"].items():
        if isinstance(values.get(name), dict) and "properties" in described:
            assert set(values[name]) == set(described["properties"]), name
