from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from app.api.schemas import VerdictModel
from app.api.upgrade_schemas import UpgradeModel, UpgradesModel
from app.main import create_app
from app.settings import Settings
from tests.support import client_of

TEXT = {"content-type": "text/plain"}
YAML = {"content-type": "application/yaml"}
RENAMED = "vllm serve m --enable-mamba-fine-grained-prefix-cache"
COMPOSE = (
    "services:\n  a: {image: 'vllm/vllm-openai:v0.29.0', command: [m]}\n"
    "  b: {image: 'vllm/vllm-openai:v0.31.0', command: [m, --port, '1']}\n"
)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(Settings(vllm_version="0.32.0"))) as client:
        yield client


@pytest.mark.asyncio
async def test_the_report_has_its_declared_shape(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/upgrade", params={"from": "0.30.0", "to": "0.33.0"}, content=RENAMED, headers=TEXT
    )
    assert response.status_code == 200
    body = response.json()
    UpgradeModel.model_validate(body)
    assert body["verdict"] == "rejected"
    assert body["changes"][0]["replacement"] == "--enable-mamba-shared-prefix-checkpoint"
    assert body["corrected"]["command"].endswith("--enable-mamba-shared-prefix-checkpoint")


@pytest.mark.asyncio
async def test_a_rejected_upgrade_answers_with_the_status_asked_for(
    client: httpx.AsyncClient,
) -> None:
    query = {"from": "0.30.0", "to": "0.33.0", "on_reject": "422"}
    headers = {**TEXT, "accept": "text/plain"}
    response = await client.post("/upgrade", params=query, content=RENAMED, headers=headers)
    assert response.status_code == 422
    assert response.text.startswith("from vLLM 0.30.0 to 0.33.0")


@pytest.mark.asyncio
async def test_services_of_a_compose_file_are_reported_each(client: httpx.AsyncClient) -> None:
    response = await client.post("/upgrade", content=COMPOSE, headers=YAML)
    body = response.json()
    UpgradesModel.model_validate(body)
    assert [(u["subject"], u["from"]) for u in body["upgrades"]] == [
        ("a", "0.29.0"),
        ("b", "0.31.0"),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"from": "0.33.0", "to": "0.28.0"}, 400),
        ({"from": "0.1.0"}, 422),
        ({"form": "0.28.0"}, 400),
    ],
)
async def test_questions_that_make_no_upgrade_are_refused(
    client: httpx.AsyncClient, query: dict[str, str], status: int
) -> None:
    response = await client.post("/upgrade", params=query, content=RENAMED, headers=TEXT)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.asyncio
async def test_services_of_a_compose_file_are_judged_each_for_its_image(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post("/validate", content=COMPOSE, headers=YAML)
    body = response.json()
    for verdict in body["verdicts"]:
        VerdictModel.model_validate(verdict)
    assert [(v["subject"], v["vllm_version"]) for v in body["verdicts"]] == [
        ("a", "0.29.0"),
        ("b", "0.31.0"),
    ]
    assert "settings" in body["verdicts"][0]


@pytest.mark.asyncio
async def test_all_settings_are_listed_if_asked_for(client: httpx.AsyncClient) -> None:
    query = {"settings": "all"}
    response = await client.post(
        "/validate", params=query, content="vllm serve m --port 1", headers=TEXT
    )
    body = response.json()
    VerdictModel.model_validate(body)
    assert body["settings"]["all"]["port"]["origin"] == "argv"
    assert body["settings"]["all"]["seed"] == {"value": 0, "origin": "default"}
    assert set(body["settings"]["given"]) == {"model", "model_tag", "port"}
    wrong = await client.post("/validate", params={"settings": "some"}, content="m", headers=TEXT)
    assert wrong.status_code in {400, 422}


@pytest.mark.asyncio
@pytest.mark.parametrize("member", ["compose", "python"])
async def test_the_envelope_takes_the_other_forms(client: httpx.AsyncClient, member: str) -> None:
    text = {"compose": COMPOSE.partition("  b:")[0], "python": "LLM('m')"}[member]
    response = await client.post("/validate", json={member: text, "vllm_version": "0.29.0"})
    body = response.json()
    VerdictModel.model_validate(body)
    assert body["accepted"], body["findings"]
