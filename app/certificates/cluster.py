"""Keeping the webhook's certificate in a cluster: the job for clusters without cert-manager.

Needs `get`, `create` and `update` on one Secret and `get` and `patch` on the two webhook
configurations (deploy/). Safe to run again at any time: what is good stays as it is.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx

from app.certificates.issue import issue, still_good
from app.errors import UnusableInput

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1"
KINDS: Final = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")


@dataclass(frozen=True, slots=True)
class Target:
    """Whose certificate: a Service, the Secret it is kept in, the configurations to tell."""

    namespace: str
    service: str
    secret: str
    configurations: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which the API server calls the Service, and short forms."""
        full = f"{self.service}.{self.namespace}.svc"
        return (full, f"{full}.cluster.local", f"{self.service}.{self.namespace}", self.service)


def inside() -> httpx.Client:
    """Make a client of the API server from the pod's service account.

    Raises:
        UnusableInput: this is no pod, or it has no service account.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        token = (ACCOUNT / "token").read_text().strip()
    except OSError:
        token = ""
    if not host or not token:
        raise UnusableInput("this is not a pod with a service account: no API server to talk to")
    return httpx.Client(
        base_url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        verify=_verification(),
        headers={"Authorization": f"Bearer {token}"},
        timeout=30,
        trust_env=False,
    )


def _verification() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))


def keep(cluster: httpx.Client, target: Target, now: datetime) -> Sequence[str]:
    """Make or renew the certificate if it is due, and give its authority to the API server.

    Returns:
        What was done, one line each.

    Raises:
        UnusableInput: the API server refused; the message has its words. Or there is no such
            configuration yet, which comes to be told when the job is tried again.
    """
    path = f"/api/v1/namespaces/{target.namespace}/secrets"
    answer = cluster.get(f"{path}/{target.secret}")
    secret = None if answer.status_code == HTTPStatus.NOT_FOUND else _json(answer)
    held = {name: base64.b64decode(text) for name, text in (secret or {}).get("data", {}).items()}
    done: list[str] = []
    authorities = held.get("ca.crt", b"")
    if not still_good(
        held.get("tls.crt", b""), held.get("tls.key", b""), authorities, target.names, now
    ):
        issued = issue(target.names, now, authorities)
        authorities = issued.authorities
        # First whom to trust, then what to serve: in between, the old certificate is served.
        _tell(cluster, target, authorities, done)
        body = _secret(target, issued.authorities, issued.certificate, issued.key, secret)
        if secret is None:
            _json(cluster.post(path, json=body))
        else:
            _json(cluster.put(f"{path}/{target.secret}", json=body))
        done.append(f"secret {target.secret}: a new certificate")
    if not _tell(cluster, target, authorities, done):
        names = ", ".join(target.configurations)
        raise UnusableInput(f"there is no webhook configuration {names} to tell whom to trust")
    return done


def _tell(cluster: httpx.Client, target: Target, authorities: bytes, done: list[str]) -> int:
    """Give the bundle to the configurations that lack it; how many there are in all."""
    bundle = base64.b64encode(authorities).decode()
    found = 0
    for kind in KINDS:
        for name in target.configurations:
            answer = cluster.get(f"{_WEBHOOKS}/{kind}/{name}")
            if answer.status_code == HTTPStatus.NOT_FOUND:
                continue
            found += 1
            patch: list[dict[str, Any]] = []
            for i, webhook in enumerate(_json(answer).get("webhooks", ())):
                if webhook["clientConfig"].get("caBundle") != bundle:
                    patch.append({"op": "test", "path": f"/webhooks/{i}/name"} | _named(webhook))
                    place = f"/webhooks/{i}/clientConfig/caBundle"
                    patch.append({"op": "add", "path": place, "value": bundle})
            if patch:
                headers = {"Content-Type": "application/json-patch+json"}
                _json(cluster.patch(f"{_WEBHOOKS}/{kind}/{name}", json=patch, headers=headers))
                done.append(f"{kind} {name}: told whom to trust")
    return found


def _named(webhook: dict[str, Any]) -> dict[str, Any]:
    return {"value": webhook["name"]}


def _secret(
    target: Target, authorities: bytes, certificate: bytes, key: bytes, old: Any
) -> dict[str, Any]:
    data = {"ca.crt": authorities, "tls.crt": certificate, "tls.key": key}
    metadata: dict[str, Any] = {
        "name": target.secret,
        "namespace": target.namespace,
        "labels": {"app.kubernetes.io/part-of": "vllm-admission"},
    }
    if old is not None:
        # Two jobs at a time: the second is refused instead of undoing the first.
        metadata = old["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": metadata,
        "data": {name: base64.b64encode(text).decode() for name, text in data.items()},
    }


def _json(answer: httpx.Response) -> Any:
    try:
        body = answer.json()
    except ValueError:
        body = {}
    if answer.is_success:
        return body
    says = body.get("message", answer.reason_phrase) if isinstance(body, dict) else ""
    request = answer.request
    raise UnusableInput(
        f"the API server refused {request.method} {request.url.path} ({answer.status_code}): {says}"
    )
