from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.catalogue import CatalogueLibrary
from app.serve_config.serve_config import Origin, ServeConfig, Setting
from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings
from tests.simulator.client import GENERATE, client_of, generation


def test_a_resolved_command_line_sets_the_server_up() -> None:
    config = ServeConfig(
        catalogue=CatalogueLibrary().get("0.28.0"),
        settings={"model_tag": Setting("m", Origin.ARGV)},
    )

    app = create_simulator(config)

    assert app.state.engine.settings.vllm_version == "0.28.0"
    assert app.state.engine.settings.model_name == "m"


@pytest.mark.asyncio
async def test_every_served_name_is_listed_and_answers_with_the_first() -> None:
    async with client_of(SimulatorSettings(served_model_name=("a", "b"))) as client:
        models = (await client.get("/v1/models")).json()
        answer = (await client.post(GENERATE, json={**generation(), "model": "b"})).json()

    assert [card["id"] for card in models["data"]] == ["a", "b"]
    assert answer["model"] == "a"


@pytest.mark.asyncio
async def test_metrics_count_what_the_engine_did() -> None:
    async with client_of() as client:
        await client.post(GENERATE, json=generation(n=2))
        response = await client.get("/metrics")

    samples = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert samples["vllm:generation_tokens_total", None] == 12
    assert samples["vllm:prompt_tokens_total", None] == 3
    assert samples["vllm:request_success_total", "length"] == 2
    assert samples["vllm:num_requests_running", None] == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic right"}, 401),
        ({"authorization": "Bearer right"}, 200),
        ({"authorization": "bearer other"}, 200),
    ],
)
@pytest.mark.asyncio
async def test_keys_guard_the_api(headers: dict[str, str], status: int) -> None:
    async with client_of(SimulatorSettings(api_keys=("right", "other")), **headers) as client:
        for response in (
            await client.get("/v1/models"),
            await client.post(GENERATE, json=generation()),
        ):
            assert response.status_code == status
            if status == 401:
                assert response.json() == {"error": "Unauthorized"}
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/tokenize", json={"prompt": "x"})).status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"token_ids": [1], "sampling_params": null}'],
    ids=["not text", "deep", "long number", "null"],
)
@pytest.mark.parametrize("path", [GENERATE, "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.asyncio
async def test_hostile_bodies_get_a_400(path: str, content: bytes) -> None:
    async with client_of() as client:
        response = await client.post(
            path, content=content, headers={"content-type": "application/json"}
        )

    assert response.status_code == 400


@pytest.mark.asyncio
async def test_concurrent_requests_do_not_mix() -> None:
    async with client_of(SimulatorSettings(max_num_seqs=3)) as client:

        async def ask(seed: int) -> Any:
            response = await client.post(GENERATE, json=generation(seed=seed))
            return response.json()["choices"][0]["token_ids"]

        together = await asyncio.gather(*(ask(seed) for seed in range(12)))
        alone = [await ask(seed) for seed in range(12)]

    assert together == alone
