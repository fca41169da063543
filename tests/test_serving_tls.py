"""The service as a process with a plain port and one with TLS, as the webhook's pods run it."""

import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from app.certificates.issue import Issued, issue
from app.certificates.serving import now
from app.errors import UnusableInput
from app.serving import certificate_of
from app.settings import Settings
from tests.kubernetes.support import BAD, container, deployment, review
from tests.support import start_command

NAMES = ("localhost",)
REVIEW = review(deployment(container(BAD)))
PLAIN = {"args": ["m", "--return-sampling-mask"], "vllm_version": "0.32.0"}


def write(folder: Path, issued: Issued) -> None:
    for name, text in (("tls.crt", issued.certificate), ("tls.key", issued.key)):
        fresh = folder / f"{name}.new"
        fresh.write_bytes(text)
        fresh.rename(folder / name)


@pytest.fixture
def first() -> Issued:
    return issue(NAMES, now())


@pytest.fixture
def urls(tmp_path: Path, first: Issued) -> Iterator[list[str]]:
    write(tmp_path, first)
    environment = {
        "VLLM_ADMISSION_TLS_CERT_FILE": str(tmp_path / "tls.crt"),
        "VLLM_ADMISSION_TLS_KEY_FILE": str(tmp_path / "tls.key"),
    }
    with start_command("serve", "--port", "0", "--tls-port", "0", env=environment) as found:
        yield [found["vllm-admission"], found["vllm-admission with TLS"]]


def trust(*issued: Issued) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=b"".join(i.authorities for i in issued).decode())


def test_both_ports_answer_and_no_call_fails_while_the_certificate_changes(
    urls: list[str], tmp_path: Path, first: Issued
) -> None:
    plain, secure = urls
    assert plain.startswith("http://")
    secure = secure.replace("127.0.0.1", "localhost")
    second = issue(NAMES, now(), first.authorities)
    context = trust(second)
    until = threading.Event()
    seen: set[bytes] = set()

    def call_for_ever() -> int:
        calls = 0
        while not until.is_set():
            # A connection each, and one that is kept: both are what an API server does.
            with httpx.Client(verify=context, trust_env=False) as client:
                with client.stream("POST", f"{secure}/validate", json=PLAIN) as answer:
                    tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
                    seen.add(tls.getpeercert(True))
                    assert answer.status_code == 200
                judged = client.post(f"{secure}/admission/validate", json=REVIEW)
                assert judged.json()["response"]["warnings"]
                assert client.get(f"{secure}/readyz").text == "ok\n"
            calls += 3
        return calls

    with ThreadPoolExecutor(2) as callers:
        calling = [callers.submit(call_for_ever) for _ in range(2)]
        try:
            time.sleep(0.2)
            write(tmp_path, second)
            for _ in range(300):
                if len(seen) == 2:
                    break
                time.sleep(0.05)
        finally:
            until.set()
        assert all(calls.result() for calls in calling)
    assert len(seen) == 2
    verbose = httpx.get(f"{plain}/readyz?verbose", trust_env=False).text
    assert "[+]certificate ok" in verbose
    metrics = httpx.get(f"{plain}/metrics", trust_env=False).text
    name = 'vllm_admission_certificate_not_after_timestamp_seconds{port="tls"}'
    (ends,) = (line.split()[-1] for line in metrics.splitlines() if line.startswith(name))
    leaf = x509.load_pem_x509_certificate(second.certificate)
    assert float(ends) == leaf.not_valid_after_utc.timestamp()


def test_drain_answers_when_it_takes_no_more(urls: list[str]) -> None:
    plain, _ = urls
    assert httpx.get(f"{plain}/drain", trust_env=False).text == "drained\n"
    ready = httpx.get(f"{plain}/readyz", trust_env=False)
    assert ready.status_code == 503
    assert "about to end" in ready.text
    assert httpx.get(f"{plain}/livez", trust_env=False).status_code == 200


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs VLLM_ADMISSION_TLS_CERT_FILE"),
        ({"tls_cert_file": "crt", "tls_key_file": "key", "workers": 2}, "run more replicas"),
        ({"tls_cert_file": "crt", "tls_key_file": "key"}, "cannot be used: .*No such file"),
    ],
)
def test_half_settings_are_refused(given: dict[str, object], message: str) -> None:
    settings = Settings(tls_port=8443).model_copy(
        update={k: Path(v) if isinstance(v, str) else v for k, v in given.items()}
    )
    with pytest.raises(UnusableInput, match=message):
        certificate_of(settings)


def test_without_a_port_there_is_no_certificate() -> None:
    assert certificate_of(Settings()) is None
