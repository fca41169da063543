"""The job that keeps the webhook's certificate, against an API server made of dictionaries."""

import base64
import json
import ssl
from datetime import timedelta
from typing import Any

import httpx
import pytest

from app.certificates.cluster import Target, inside, keep
from app.certificates.issue import RENEW_BEFORE, VALID, issue, still_good
from app.certificates.serving import now
from app.errors import UnusableInput

TARGET = Target("gate", "vllm-admission", "vllm-admission-tls", ("vllm-admission",))
BASE = "/apis/admissionregistration.k8s.io/v1"


class ApiServer:
    """The few resources of the job; the order of writes is kept."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None
        self.webhooks: dict[str, list[dict[str, Any]]] = {
            f"{BASE}/validatingwebhookconfigurations/vllm-admission": [
                {"name": "warn.vllm-admission", "clientConfig": {}},
                {"name": "enforce.vllm-admission", "clientConfig": {"caBundle": ""}},
            ],
        }
        self.writes: list[tuple[str, str]] = []

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self.answer), base_url="https://api")

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.method != "GET":
            self.writes.append((request.method, path))
        if "/secrets" in path:
            return self._secret(request)
        if path not in self.webhooks:
            return httpx.Response(404, json={"message": "not found"})
        if request.method == "PATCH":
            self._patch(path, json.loads(request.content))
        return httpx.Response(200, json={"webhooks": self.webhooks[path]})

    def _secret(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            if self.secret is None:
                return httpx.Response(404, json={"message": "not found"})
            return httpx.Response(200, json=self.secret)
        body = json.loads(request.content)
        held = None if self.secret is None else self.secret["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion") != held:
            return httpx.Response(409, json={"message": "the object has been modified"})
        body["metadata"]["resourceVersion"] = str(len(self.writes))
        self.secret = body
        return httpx.Response(200, json=body)

    def _patch(self, path: str, operations: list[dict[str, Any]]) -> None:
        for operation in operations:
            _, _, index, *rest = operation["path"].split("/")
            webhook = self.webhooks[path][int(index)]
            if operation["op"] == "test":
                assert webhook["name"] == operation["value"]
            else:
                assert rest == ["clientConfig", "caBundle"]
                webhook["clientConfig"]["caBundle"] = operation["value"]

    @property
    def bundles(self) -> set[str]:
        return {
            webhook["clientConfig"]["caBundle"]
            for webhooks in self.webhooks.values()
            for webhook in webhooks
        }

    def is_good(self) -> bool:
        certificate, key = self.held("tls.crt"), self.held("tls.key")
        return still_good(certificate, key, self.held("ca.crt"), TARGET.names, now())

    def held(self, name: str) -> bytes:
        assert self.secret is not None
        return base64.b64decode(self.secret["data"][name])


def test_the_first_run_makes_it_and_tells_every_webhook() -> None:
    api = ApiServer()
    done = keep(api.client(), TARGET, now())
    assert any("a new certificate" in line for line in done)
    assert api.bundles == {base64.b64encode(api.held("ca.crt")).decode()}
    assert api.is_good()
    context = ssl.create_default_context(cadata=api.held("ca.crt").decode())
    assert context.cert_store_stats()["x509_ca"] == 1


def test_a_second_run_changes_nothing() -> None:
    api = ApiServer()
    keep(api.client(), TARGET, now())
    writes = len(api.writes)
    assert keep(api.client(), TARGET, now()) == []
    assert len(api.writes) == writes


def test_a_renewal_keeps_trust_in_what_is_still_served() -> None:
    api = ApiServer()
    keep(api.client(), TARGET, now())
    old = api.held("ca.crt")
    api.writes.clear()
    late = now() + VALID - RENEW_BEFORE + timedelta(days=1)
    keep(api.client(), TARGET, late)
    assert old in api.held("ca.crt")
    assert api.held("ca.crt").count(b"BEGIN CERTIFICATE") == 2
    # Whom to trust is told before anything new is served.
    assert [method for method, _ in api.writes] == ["PATCH", "PUT"]


def test_a_configuration_that_lost_its_bundle_gets_it_again() -> None:
    api = ApiServer()
    keep(api.client(), TARGET, now())
    next(iter(api.webhooks.values()))[0]["clientConfig"] = {}
    assert keep(api.client(), TARGET, now()) == [
        "validatingwebhookconfigurations vllm-admission: told whom to trust"
    ]


def test_a_job_that_comes_second_is_refused_and_says_so() -> None:
    api = ApiServer()
    keep(api.client(), TARGET, now())
    assert api.secret is not None
    stale = {**api.secret, "metadata": {**api.secret["metadata"], "resourceVersion": "old"}}
    stale["data"] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and "/secrets/" in request.url.path:
            return httpx.Response(200, json=stale)
        return api.answer(request)

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="https://api")
    with pytest.raises(UnusableInput, match=r"refused PUT .*\(409\): the object has been modified"):
        keep(client, TARGET, now())


def test_a_job_that_is_too_early_is_tried_again() -> None:
    """Helm makes webhook configurations last: the job may be there first."""
    api = ApiServer()
    webhooks, api.webhooks = api.webhooks, {}
    with pytest.raises(UnusableInput, match="no webhook configuration vllm-admission"):
        keep(api.client(), TARGET, now())
    assert api.is_good()
    api.webhooks = webhooks
    assert len(keep(api.client(), TARGET, now())) == 1
    assert api.bundles == {base64.b64encode(api.held("ca.crt")).decode()}


@pytest.mark.parametrize(
    "change",
    [
        {"tls.key": b""},
        {"tls.key": issue(TARGET.names, now()).key},
        {"ca.crt": b""},
        {"ca.crt": b"no certificate"},
        {"ca.crt": issue(TARGET.names, now()).authorities},
        {"tls.crt": b"no certificate"},
        {"tls.crt": issue(("elsewhere",), now()).certificate},
        {"tls.crt": issue(TARGET.names, now() + timedelta(days=30)).certificate},
    ],
)
def test_a_secret_that_cannot_serve_is_made_anew(change: dict[str, bytes]) -> None:
    api = ApiServer()
    keep(api.client(), TARGET, now())
    assert api.secret is not None
    api.secret["data"] |= {n: base64.b64encode(text).decode() for n, text in change.items()}
    assert not api.is_good()
    keep(api.client(), TARGET, now())
    assert api.is_good()
    assert api.bundles == {base64.b64encode(api.held("ca.crt")).decode()}


def test_outside_a_pod_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UnusableInput, match="not a pod with a service account"):
        inside()
