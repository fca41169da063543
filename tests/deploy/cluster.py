"""A cluster in miniature: what is installed is what the chart renders, and little else is ours.

The API server calls the webhooks that are configured, as they are configured: selectors, rules and
conditions, the Service's name and ports, the authority it was told of. The kubelet puts the Secret
where the Deployment mounts it and starts the container's arguments as a process.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import cel
import httpx
import jsonpatch

from app.certificates.cluster import KINDS, Target, keep
from tests.deploy.manifests import Manifest, find
from tests.support import start_command

_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1"
MUTATING: Final = "MutatingWebhookConfiguration"
VALIDATING: Final = "ValidatingWebhookConfiguration"
USER: Final = {"username": "ada", "groups": ["system:authenticated"]}


@dataclass
class Admitted:
    """What a client of the API server is told."""

    object: Manifest
    refusal: str | None = None
    warnings: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


class Cluster:
    """The objects that were installed, and the namespaces with their labels."""

    def __init__(self, manifests: Sequence[Manifest], folder: Path) -> None:
        self.manifests = [json.loads(json.dumps(manifest)) for manifest in manifests]
        self.folder = folder
        self.secrets: dict[str, Manifest] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self._addresses: dict[str, int] = {}
        self._writes = 0

    # the job

    def run_job(self, now: datetime) -> None:
        """Do what the pod of the Job does, at that time."""
        (job,) = find(self.manifests, "Job")
        (container,) = job["spec"]["template"]["spec"]["containers"]
        command, *options = container["args"]
        assert command == "certificate"
        given = dict(option.removeprefix("--").split("=", 1) for option in options)
        configuration = (given["configuration"],)
        target = Target(given["namespace"], given["service"], given["secret"], configuration)
        transport = httpx.MockTransport(self._answered)
        with httpx.Client(transport=transport, base_url="https://api") as client:
            keep(client, target, now)

    def _answered(self, request: httpx.Request) -> httpx.Response:
        *_, collection, name = request.url.path.split("/")
        body: Any = json.loads(request.content or b"null")
        if request.method in {"POST", "PUT"}:
            self._writes += 1
            name = body["metadata"]["name"]
            body["metadata"]["resourceVersion"] = str(self._writes)
            self.secrets[name] = body
            return httpx.Response(200, json=body)
        if collection == "secrets":
            held = self.secrets.get(name)
        else:
            kind = {KINDS[0]: VALIDATING, KINDS[1]: MUTATING}[collection]
            named = [m for m in find(self.manifests, kind) if m["metadata"]["name"] == name]
            held = named[0] if named else None
        if held is None:
            return httpx.Response(404, json={"message": "not found"})
        if request.method == "PATCH":
            jsonpatch.JsonPatch(body).apply(held, in_place=True)
        return httpx.Response(200, json=held)

    # the kubelet

    def sync_volume(self) -> Path:
        """Put the Secret where the pods see it, by a link that is swapped."""
        (volume,) = (v for v in self._pod()["volumes"] if v["name"] == "tls")
        data = self.secrets[volume["secret"]["secretName"]]["data"]
        version = Path(tempfile.mkdtemp(prefix="..", dir=self.folder))
        for item in volume["secret"]["items"]:
            (version / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
            if not (self.folder / item["path"]).is_symlink():
                (self.folder / item["path"]).symlink_to(f"..data/{item['path']}")
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        fresh.rename(self.folder / "..data")
        return self.folder

    @contextmanager
    def pod(self) -> Iterator[None]:
        """Run the Deployment's container, behind the Service."""
        (container,) = self._pod()["containers"]
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        ports = ("--host", "--port", "--tls-port")
        words = [word for word in container["args"] if word.partition("=")[0] not in ports]
        given = {v["name"]: v["value"] for v in container["env"]}
        variables = {
            name: value.replace(mounts["tls"], str(self.folder)) for name, value in given.items()
        }
        with start_command(*words, "--port", "0", "--tls-port", "0", env=variables) as urls:
            real = {"http": urls["vllm-admission"], "webhook": urls["vllm-admission with TLS"]}
            (service,) = find(self.manifests, "Service")
            for port in service["spec"]["ports"]:
                address = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
                url = httpx.URL(real[port["targetPort"]])
                assert url.port is not None
                self._addresses[f"{address}:{port['port']}"] = url.port
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = container[name]["httpGet"]
                answer = httpx.get(real[probe["port"]] + probe["path"], trust_env=False)
                assert answer.status_code == 200, name
            try:
                yield
            finally:
                self._addresses.clear()

    def _pod(self) -> Manifest:
        (deployment,) = find(self.manifests, "Deployment")
        spec: Manifest = deployment["spec"]["template"]["spec"]
        return spec

    # the API server

    def create(
        self, manifest: Manifest, namespace: str, user: Mapping[str, Any] = USER
    ) -> Admitted:
        return self._admitted(Admitted(manifest), "CREATE", namespace, None, user)

    def update(self, old: Manifest, new: Manifest, namespace: str) -> Admitted:
        return self._admitted(Admitted(new), "UPDATE", namespace, old, USER)

    def _admitted(
        self,
        admitted: Admitted,
        operation: str,
        namespace: str,
        old: Manifest | None,
        user: Mapping[str, Any],
    ) -> Admitted:
        labels = {"kubernetes.io/metadata.name": namespace, **self.namespaces.get(namespace, {})}
        for kind in (MUTATING, VALIDATING):
            for configuration in find(self.manifests, kind):
                for webhook in configuration["webhooks"]:
                    group, _, version = admitted.object["apiVersion"].rpartition("/")
                    plural = f"{admitted.object['kind'].lower()}s"
                    request = {
                        "uid": f"{namespace}-{webhook['name']}",
                        "kind": {"group": group, "version": version, "kind": plural},
                        "operation": operation,
                        "namespace": namespace,
                        "userInfo": dict(user),
                        "object": admitted.object,
                        "oldObject": old,
                    }
                    if (
                        _selects(webhook["namespaceSelector"], labels)
                        and any(_covers(rule, request, plural) for rule in webhook["rules"])
                        and all(
                            _holds(c["expression"], request) for c in webhook["matchConditions"]
                        )
                    ):
                        admitted.asked.append(webhook["name"])
                        self._call(webhook, request, admitted)
        return admitted

    def _call(self, webhook: Manifest, request: Manifest, admitted: Admitted) -> None:
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        try:
            answer = self._answer(webhook, {**review, "request": request})
        except OSError as error:
            if webhook["failurePolicy"] == "Fail":
                admitted.refusal = admitted.refusal or f"failed calling webhook: {error}"
            return
        response = answer["response"]
        assert response["uid"] == request["uid"]
        admitted.warnings += response.get("warnings", [])
        if not response["allowed"]:
            admitted.refusal = admitted.refusal or response["status"]["message"]
        if "patch" in response:
            patch = jsonpatch.JsonPatch(json.loads(base64.b64decode(response["patch"])))
            admitted.object = patch.apply(admitted.object)

    def _answer(self, webhook: Manifest, review: Manifest) -> Manifest:
        service = webhook["clientConfig"]["service"]
        host = f"{service['name']}.{service['namespace']}.svc"
        port = self._addresses.get(f"{host}:{service['port']}")
        if port is None:
            raise ConnectionRefusedError(f"no endpoints available for {host}")
        bundle = base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()
        trusted = (
            ssl.create_default_context(cadata=bundle) if bundle else ssl.create_default_context()
        )
        client = http.client.HTTPConnection(host, timeout=webhook["timeoutSeconds"])
        with closing(client):
            raw = socket.create_connection(("127.0.0.1", port), timeout=10)
            client.sock = trusted.wrap_socket(raw, server_hostname=host)
            header = {"Content-Type": "application/json"}
            client.request("POST", service["path"], json.dumps(review), header)
            answer = client.getresponse()
            body: Manifest = json.load(answer)
            if answer.status != 200:
                raise OSError(f"{answer.status}: {body}")
            return body


def _selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    for wanted in selector["matchExpressions"]:
        value = labels.get(wanted["key"])
        if (value in wanted["values"]) is not {"In": True, "NotIn": False}[wanted["operator"]]:
            return False
    return True


def _covers(rule: Manifest, request: Manifest, plural: str) -> bool:
    versions = rule["apiVersions"]
    return (
        request["operation"] in rule["operations"]
        and request["kind"]["group"] in rule["apiGroups"]
        and (versions == ["*"] or request["kind"]["version"] in versions)
        and plural in rule["resources"]
    )


def _holds(expression: str, request: Manifest) -> bool:
    context = cel.Context()
    context.add_variable("request", request)
    context.add_variable("object", request["object"])
    return cel.evaluate(expression, context) is True
