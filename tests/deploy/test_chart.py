"""The Helm chart, rendered by Helm."""

import base64
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app.settings import Settings
from tests.deploy.manifests import (
    Manifest,
    Programs,
    check_schemas,
    dangling,
    documents,
    faults,
    find,
    generator,
    pod_specs,
)

VARIANTS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "self-signed": ("certificate.source=self-signed", "webhook.mutate.enabled=true"),
    "provided": (
        "certificate.source=provided",
        "certificate.secretName=mine",
        "certificate.caBundle=-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
    ),
    "injected": (
        "certificate.source=provided",
        r"webhook.annotations.pki\.example\.com/inject=ours",
        "webhook.mutate.enabled=true",
        "runAsUser=null",
    ),
    "issuer": ("certificate.issuerRef.kind=ClusterIssuer", "certificate.issuerRef.name=ours"),
    "proxy": (
        "webhook.enabled=false",
        "proxy.enabled=true",
        "proxy.backendUrl=http://vllm:8000",
        "proxy.vllmVersion=0.32.0",
        "proxy.serveConfig=vllm serve m",
        "networkPolicy.from[0].podSelector.matchLabels.trains=yes",
        "settings.workers=4",
    ),
    "nothing optional": (
        "replicaCount=1",
        "networkPolicy.enabled=false",
        "podDisruptionBudget.enabled=false",
        "webhook.customResources=false",
        "webhook.modes={enforce}",
        "certificate.source=self-signed",
    ),
    "everything": (
        "proxy.enabled=true",
        "proxy.backendUrl=http://vllm:8000",
        "autoscaling.enabled=true",
        "serviceMonitor.enabled=true",
        "policy.enabled=true",
        "webhook.mutate.enabled=true",
        "webhook.validate.failurePolicy=Fail",
        "image.digest=sha256:" + "0" * 64,
        "imagePullSecrets[0].name=registry",
        "priorityClassName=system-cluster-critical",
        "nodeSelector.disk=ssd",
        "tolerations[0].operator=Exists",
        "podLabels.team=rollouts",
        "commonLabels.cost-center=c42",
        "podAnnotations.note=hello",
        "proxy.serveConfig=vllm serve m",
        "networkPolicy.egress[0].ports[0].port=8000",
        "listenAddress=::",
        "envFrom[0].secretRef.name=hub",
        "volumes[0].name=models",
        "volumes[0].persistentVolumeClaim.claimName=models",
        "volumeMounts[0].name=models",
        "volumeMounts[0].mountPath=/models",
        "settings.model_root=/models",
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


def test_nothing_refers_to_what_is_not_there(manifests: list[Manifest]) -> None:
    assert list(dangling(manifests)) == []


def test_every_object_is_in_the_release(manifests: list[Manifest]) -> None:
    cluster_wide = ("ClusterRole", "Webhook", "ValidatingAdmissionPolicy")
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "gate"
        if not any(word in manifest["kind"] for word in cluster_wide):
            assert manifest["metadata"]["namespace"] == "gates"


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
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    (service,) = find(manifests, "Service")
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports


def test_settings_in_the_manifests_exist(manifests: list[Manifest]) -> None:
    known = {f"VLLM_ADMISSION_{name.upper()}" for name in Settings.model_fields}
    for _, pod in pod_specs(manifests):
        for container in pod["containers"]:
            assert {variable["name"] for variable in container.get("env", ())} <= known


def test_what_is_mounted_is_a_volume(manifests: list[Manifest]) -> None:
    for _, pod in pod_specs(manifests):
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes


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


def test_only_what_is_to_be_refused_fails_closed(programs: Programs) -> None:
    """A namespace that asked for warnings must not be shut when nobody answers."""
    manifests = programs.template("webhook.validate.failurePolicy=Fail")
    (configuration,) = find(manifests, "ValidatingWebhookConfiguration")
    policies = [webhook["failurePolicy"] for webhook in configuration["webhooks"]]
    assert policies == ["Ignore", "Ignore", "Fail"]


def test_the_policy_does_in_each_namespace_what_its_mode_says(programs: Programs) -> None:
    manifests = programs.template("policy.enabled=true", "webhook.enabled=false")
    (policy,) = find(manifests, "ValidatingAdmissionPolicy")
    actions = {}
    for binding in find(manifests, "ValidatingAdmissionPolicyBinding"):
        assert binding["spec"]["policyName"] == policy["metadata"]["name"] == "gate-vllm-admission"
        selector = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        (mode,) = selector[0]["values"]
        actions[mode] = binding["spec"]["validationActions"]
        assert {"kube-system", "gates"} <= set(selector[1]["values"])
    assert actions == {"audit": ["Audit"], "warn": ["Warn"], "enforce": ["Deny"]}


def test_the_authority_outlives_the_certificates_it_signs(programs: Programs) -> None:
    """A self-signed leaf would be distrusted until every pod has its successor."""
    manifests = programs.template()
    authority, leaf = find(manifests, "Certificate")
    root, issuer = sorted(find(manifests, "Issuer"), key=lambda i: i["spec"].get("ca") is not None)
    assert authority["spec"]["isCA"] is True
    assert authority["spec"]["issuerRef"]["name"] == root["metadata"]["name"]
    assert authority["spec"]["privateKey"]["rotationPolicy"] == "Never"
    assert issuer["spec"]["ca"]["secretName"] == authority["spec"]["secretName"]
    assert leaf["spec"]["issuerRef"] == {"kind": "Issuer", "name": issuer["metadata"]["name"]}
    assert leaf["spec"]["secretName"] != authority["spec"]["secretName"]
    (configuration,) = find(manifests, "ValidatingWebhookConfiguration")
    source = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert source == f"gates/{leaf['metadata']['name']}"
    (deployment,) = find(manifests, "Deployment")
    (volume,) = (v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "tls")
    assert volume["secret"]["secretName"] == leaf["spec"]["secretName"]


def test_a_provided_certificate_brings_its_authority(programs: Programs) -> None:
    manifests = programs.template(*VARIANTS["provided"])
    (configuration,) = find(manifests, "ValidatingWebhookConfiguration")
    for webhook in configuration["webhooks"]:
        bundle = base64.b64decode(webhook["clientConfig"]["caBundle"])
        assert bundle.startswith(b"-----BEGIN CERTIFICATE-----\n")
    injected = programs.template(*VARIANTS["injected"])
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        (configuration,) = find(injected, kind)
        assert configuration["metadata"]["annotations"] == {"pki.example.com/inject": "ours"}


def test_numbers_keep_their_digits(programs: Programs, tmp_path: Path) -> None:
    """Numbers of a values file are floats to Helm, which writes 1.6777216e+07."""
    values = tmp_path / "values.yaml"
    values.write_text(
        "settings: {max_review_bytes: 16777216, drain_delay: 0.5, tracing: true, "
        "limits: '{\"max_model_len\": 32768}'}"
    )
    done = programs.helm("template", "gate", str(programs.chart), "--values", str(values))
    (deployment,) = find(documents(done.stdout), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = {v["name"]: v["value"] for v in container["env"]}
    assert given["VLLM_ADMISSION_MAX_REVIEW_BYTES"] == "16777216"
    assert given["VLLM_ADMISSION_DRAIN_DELAY"] == "0.5"
    assert given["VLLM_ADMISSION_TRACING"] == "true"
    assert given["VLLM_ADMISSION_LIMITS"] == '{"max_model_len": 32768}'


@pytest.mark.parametrize(
    "release", ["g", "a" * 26, "b" * 40, "c" * 53, "vllm-admission-" + "d" * 38]
)
def test_names_are_as_long_as_they_may_be(programs: Programs, release: str) -> None:
    words = ("--set", "certificate.source=self-signed,policy.enabled=true")
    done = programs.helm("template", release, str(programs.chart), *words)
    assert done.returncode == 0, done.stderr
    manifests = documents(done.stdout)
    for manifest in manifests:
        # The controller of CronJobs adds 11 characters to a Job's name.
        assert len(manifest["metadata"]["name"]) <= (52 if manifest["kind"] == "CronJob" else 63)
    other = documents(programs.helm("template", release[:-1] + "z", str(programs.chart)).stdout)
    names = {find(m, "Deployment")[0]["metadata"]["name"] for m in (manifests, other)}
    assert len(names) == 2


def test_a_changed_configuration_starts_the_pods_anew(programs: Programs) -> None:
    def checksum(command: str) -> str:
        values = (
            "proxy.enabled=true",
            "proxy.backendUrl=http://v:8000",
            f"proxy.serveConfig={command}",
        )
        (deployment,) = find(programs.template(*values), "Deployment")
        text: str = deployment["spec"]["template"]["metadata"]["annotations"]["checksum/serve"]
        return text

    assert checksum("vllm serve m") == checksum("vllm serve m") != checksum("vllm serve n")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((), "true"),
        (("settings.unready_without_backend=false",), "false"),
        (("settings.health_interval=0",), None),
        # A webhook that waits for vLLM would keep away the pods of that vLLM.
        (("webhook.enabled=true",), None),
        (("proxy.enabled=false",), None),
    ],
)
def test_only_a_proxy_of_its_own_waits_for_its_backend(
    programs: Programs, values: tuple[str, ...], wanted: str | None
) -> None:
    (deployment,) = find(
        programs.template(*VARIANTS["proxy"], "settings.workers=1", *values), "Deployment"
    )
    (gate,) = deployment["spec"]["template"]["spec"]["containers"]
    given = [v for v in gate["env"] if v["name"] == "VLLM_ADMISSION_UNREADY_WITHOUT_BACKEND"]
    assert [v["value"] for v in given] == ([] if wanted is None else [wanted])


def test_the_largest_body_fits_into_the_memory(programs: Programs) -> None:
    """Measured: a body takes five times its size, a process 120 MiB, and one that replays 90."""
    values = yaml.safe_load((programs.chart / "values.yaml").read_text())
    largest = max(
        values["settings"]["max_replay_bytes"],
        values["settings"]["max_replay_line_bytes"],
        Settings().max_body_bytes,
        Settings().max_review_bytes,
    )
    needed = 120 + values["settings"]["replay_workers"] * 90 + 5 * largest / 2**20
    assert needed < int(values["resources"]["limits"]["memory"].removesuffix("Mi"))


def test_where_all_is_denied_the_job_reaches_the_api_server(programs: Programs) -> None:
    manifests = programs.template(*VARIANTS["self-signed"])
    gate, job = find(manifests, "NetworkPolicy")
    (cron_job,) = find(manifests, "CronJob")
    labels = cron_job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert job["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert not gate["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert job["spec"]["ingress"] == []
    assert job["spec"]["egress"] == [
        {"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443)]}
    ]
    assert gate["spec"]["egress"] == []


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
        ("settings.drian_seconds=3", "drian_seconds"),
        ("settings.hub_token=secret", "hub_token"),
        ("settings.drain_seconds=600", "terminationGracePeriodSeconds must be at least 615"),
        ("settings.workers=2", "settings.workers must be 1"),
        ("autoscaling.enabled=true,autoscaling.maxReplicas=1", "more than autoscaling.maxReplicas"),
        (r"podLabels.app\.kubernetes\.io/name=other", "app.kubernetes.io/name"),
        ("fullnameOverride=A_b", "fullnameOverride"),
        ("certificate.caBundle=/ca.pem", "caBundle"),
        ("policy.action=Deny", "action"),
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


def test_the_schema_knows_the_settings_that_belong_into_values(programs: Programs) -> None:
    """A misspelt setting is told of at the installation; what the chart sets itself is not one."""
    text = (programs.chart / "values.schema.json").read_text()
    assert text == generator().schema(), "run `make manifests`"
    names = set(json.loads(text)["properties"]["settings"]["propertyNames"]["enum"])
    secret = {n for n, f in Settings.model_fields.items() if "SecretStr" in str(f.annotation)}
    assert not names & secret
    assert {"log_level", "drain_seconds", "max_review_bytes"} <= names <= set(Settings.model_fields)
