from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from pydantic import TypeAdapter

from app.api.schemas import FlagModel, RuleModel, VersionsModel
from app.main import create_app
from app.settings import Settings
from tests.support import client_of


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(Settings(vllm_version="0.30.0"))) as client:
        yield client


@pytest.mark.asyncio
async def test_rules_of_all_gates_are_listed(client: httpx.AsyncClient) -> None:
    body = (await client.get("/rules")).json()
    rules = TypeAdapter(list[RuleModel]).validate_python(body)
    assert {rule.gate for rule in rules} == {"configuration", "request", "replay"}
    assert len({rule.id for rule in rules}) == len(rules)


@pytest.mark.asyncio
async def test_one_rule_is_explained(client: httpx.AsyncClient) -> None:
    rule = (await client.get("/rules/sampling-mask-logprobs-mode")).json()
    assert rule["source"].startswith("vllm/config/vllm.py::")
    assert rule["bad"]


@pytest.mark.asyncio
async def test_a_misspelt_rule_gets_a_suggestion(client: httpx.AsyncClient) -> None:
    response = await client.get("/rules/sampling-mask-logprob-mode")
    assert response.status_code == 404
    assert "sampling-mask-logprobs-mode" in response.json()["detail"]


@pytest.mark.asyncio
async def test_versions_and_the_assumed_one_are_listed(client: httpx.AsyncClient) -> None:
    body = (await client.get("/versions")).json()
    VersionsModel.model_validate(body)
    assert body["versions"][0] == "0.28.0"
    assert body["default"] == "0.30.0"


@pytest.mark.asyncio
async def test_flags_are_those_of_the_version(client: httpx.AsyncClient) -> None:
    def dests(response: httpx.Response) -> set[str]:
        return {f.dest for f in TypeAdapter(list[FlagModel]).validate_python(response.json())}

    old = dests(await client.get("/versions/0.29.0/flags"))
    new = dests(await client.get("/versions/v0.30.0/flags"))
    assert "enable_scale_out" not in old
    assert "enable_scale_out" in new


@pytest.mark.asyncio
async def test_flags_of_an_unknown_version_are_a_problem(client: httpx.AsyncClient) -> None:
    assert (await client.get("/versions/1.0/flags")).status_code == 422
