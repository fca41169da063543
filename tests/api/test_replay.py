from __future__ import annotations

import json
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.api.replay_schemas import ReplayReport
from app.main import create_app
from app.settings import Settings
from tests.support import client_of

SAMPLES = Path(__file__).parent.parent / "replay" / "samples"


def case(version: str = "0.32.0") -> dict[str, Any]:
    return {
        "vllm_version": version,
        "request": json.loads((SAMPLES / "request.json").read_text()),
        "response": json.loads((SAMPLES / f"{version}.json").read_text()),
    }


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(Settings(max_replay_bytes=1_000_000))) as client:
        yield client


@pytest.mark.asyncio
@pytest.mark.parametrize("version", ["0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"])
async def test_recorded_responses_are_exact(client: httpx.AsyncClient, version: str) -> None:
    body = (await client.post("/replay", json=case(version))).json()
    ReplayReport.model_validate(body)
    assert body["verdict"] == "consistent"
    assert body["rows"]["exact"] == 12
    assert body["rows"]["mismatch"] == 0


@pytest.mark.asyncio
async def test_a_swapped_token_is_refuted(client: httpx.AsyncClient) -> None:
    tampered = deepcopy(case())
    choice = tampered["response"]["choices"][0]
    row = choice["logprobs"]["content"][0]
    choice["token_ids"][0] = 323
    row["token_id"], row["logprob"] = 323, row["top_logprobs"][1]["logprob"]
    response = await client.post("/replay?on_reject=409", json=tampered)
    assert response.status_code == 409
    assert response.json()["verdict"] == "inconsistent"
    assert response.json()["rows"]["mismatch"] == 1


@pytest.mark.asyncio
async def test_plain_text_is_a_report_for_people(client: httpx.AsyncClient) -> None:
    response = await client.post("/replay", json=case(), headers={"accept": "text/plain"})
    assert response.headers["content-type"].startswith("text/plain")
    assert "consistent" in response.text


def without_masks() -> dict[str, Any]:
    broken = case()
    broken["response"]["choices"][0]["sampling_mask"] = None
    return broken


def with_text(change: str, to: str) -> bytes:
    return json.dumps(case()).replace(change, to, 1).encode()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"vllm_version": "0.32.0", ', 400),
        (b"[]", 400),
        (b"{}", 400),
        (json.dumps(case() | {"vllm_version": "banana"}).encode(), 422),
        (b'{"a": "' + b"x" * 1_000_000 + b'"}', 413),
        (b"\xff\xfe", 400),
    ],
    ids=["broken", "list", "empty", "version", "large", "not-utf-8"],
)
async def test_unusable_evidence_is_a_problem(
    client: httpx.AsyncClient, body: bytes, status: int
) -> None:
    response = await client.post("/replay", content=body)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"]


@pytest.mark.asyncio
async def test_a_response_without_masks_says_where_and_why(client: httpx.AsyncClient) -> None:
    response = await client.post("/replay", json=without_masks())
    assert response.status_code == 400
    problem = response.json()["errors"][0]
    assert problem["pointer"] == "/response/choices/0/sampling_mask"


@pytest.mark.asyncio
async def test_nan_in_a_response_is_named(client: httpx.AsyncClient) -> None:
    body = with_text("-0.1797446459531784", "NaN")
    response = await client.post("/replay", content=body)
    assert response.status_code == 400
    problem = response.json()["errors"][0]
    assert problem["pointer"] == "/response/choices/0/logprobs/content/0/logprob"
    assert "nan" in problem["detail"]
