"""The routes of the webhook: bodies, modes, limits, metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.api import admission
from app.kubernetes.mode import Mode
from app.main import create_app
from app.settings import Settings
from tests.kubernetes.support import BAD, GOOD, container, deployment, review
from tests.support import client_of

REVIEW = review(deployment(container(BAD)))


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(vllm_version="0.32.0", max_review_bytes=4_000_000)
    async with client_of(create_app(settings)) as client:
        yield client


async def response_of(client: httpx.AsyncClient, path: str, data: Any) -> dict[str, Any]:
    answer = await client.post(f"/admission/{path}", json=data)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, Any] = answer.json()
    assert body["kind"] == "AdmissionReview"
    response: dict[str, Any] = body["response"]
    return response


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "allowed", "warned"),
    [
        ("validate", True, True),
        ("validate/audit", True, False),
        ("validate/warn", True, True),
        ("validate/enforce", False, True),
    ],
)
async def test_the_path_says_the_mode(
    client: httpx.AsyncClient, path: str, allowed: bool, warned: bool
) -> None:
    response = await response_of(client, path, REVIEW)
    assert response["uid"] == REVIEW["request"]["uid"]
    assert response["allowed"] is allowed
    assert ("warnings" in response) is warned


@pytest.mark.asyncio
async def test_a_setting_says_the_mode_of_the_bare_path() -> None:
    settings = Settings(vllm_version="0.32.0", admission_mode=Mode.ENFORCE)
    async with client_of(create_app(settings)) as client:
        assert (await response_of(client, "validate", REVIEW))["allowed"] is False


@pytest.mark.asyncio
async def test_mutations_patch(client: httpx.AsyncClient) -> None:
    assert (await response_of(client, "mutate", REVIEW))["patchType"] == "JSONPatch"
    good = review(deployment(container(GOOD)))
    assert set(await response_of(client, "mutate", good)) == {"uid", "allowed"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b'{"a": 1, "a": 2}', 400),
        (b'"%s"' % (b"x" * 4_000_000), 413),
        (b"[]", 200),
    ],
    ids=["empty", "broken", "bytes", "twice", "large", "readable"],
)
async def test_bodies_that_cannot_be_read(
    client: httpx.AsyncClient, body: bytes, status: int
) -> None:
    for path in ("validate", "mutate", "validate/enforce"):
        answer = await client.post(
            f"/admission/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["response"]["status"]["code"] == 400
        else:
            assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.asyncio
async def test_three_megabytes_are_judged(client: httpx.AsyncClient) -> None:
    subject = deployment(container(BAD), annotations={"blob": "x" * 3_000_000})
    assert not (await response_of(client, "validate/enforce", review(subject)))["allowed"]


@pytest.mark.asyncio
async def test_other_methods_and_modes(client: httpx.AsyncClient) -> None:
    assert (await client.get("/admission/validate")).status_code == 405
    assert (await client.post("/admission/validate/no", json=REVIEW)).status_code == 400


@pytest.mark.asyncio
async def test_a_mistake_of_ours_lets_it_through_and_is_counted(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(admission, "validated", broken)
    response = await response_of(client, "validate/enforce", REVIEW)
    assert response["allowed"] is True
    assert "failed" in response["warnings"][0]
    metrics = (await client.get("/metrics")).text
    assert 'vllm_admission_rule_crashes_total{rule="admission"} 1.0' in metrics
    assert 'decision="crashed",operation="CREATE"' in metrics


@pytest.mark.asyncio
async def test_reviews_are_counted(client: httpx.AsyncClient) -> None:
    await response_of(client, "validate/enforce", REVIEW)
    await response_of(client, "validate/warn", REVIEW)
    odd = json.loads(json.dumps(REVIEW))
    odd["request"]["operation"] = "x" * 99
    await response_of(client, "validate", odd)
    metrics = (await client.get("/metrics")).text
    assert 'vllm_admission_reviews_total{decision="refused",operation="CREATE"} 1.0' in metrics
    assert 'vllm_admission_reviews_total{decision="would-refuse",operation="CREATE"} 1.0' in metrics
    assert 'vllm_admission_reviews_total{decision="ignored",operation="OTHER"} 1.0' in metrics
    assert "vllm_admission_review_duration_seconds_count 3.0" in metrics
    assert 'vllm_admission_verdicts_total{verdict="rejected"' in metrics
