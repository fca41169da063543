"""Settings about request rules, from the environment's words to what a client sees."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.serving import simulator_of
from app.settings import Settings
from tests.support import serving

VERSION = "0.32.0"
COMMAND = (
    "vllm serve toy --return-sampling-mask --logprobs-mode processed_logprobs "
    "--enable-scale-out --max-model-len 64 --generation-config vllm"
)
GENERATE = "/inference/v1/generate"
REPAIR, WARNING = "x-vllm-admission-repair", "x-vllm-admission-warning"


@asynccontextmanager
async def _gate(**given: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(simulator_of(VERSION, COMMAND)) as backend:
        settings = Settings(
            backend_url=backend, serve_config=COMMAND, vllm_version=VERSION, **given
        )
        async with serving(create_app(settings)) as url, httpx.AsyncClient(base_url=url) as client:
            yield client


def _body(**sampling: Any) -> dict[str, Any]:
    return {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1, "seed": 1, **sampling}}


@pytest.mark.asyncio
async def test_a_repaired_request_is_answered_and_says_so() -> None:
    rules = {"sampling-mask-top-k": "repair", "request-max-tokens-cut": "repair"}
    async with _gate(request_rules=rules, request_repair_top_k=3) as client:
        answer = await client.post(GENERATE, json=_body(max_tokens=99))
    assert answer.status_code == 200, answer.text
    assert answer.headers.get_list(REPAIR) == [
        "sampling-mask-top-k; top_k=3",
        "request-max-tokens-cut; max_tokens=62",
    ]
    (choice,) = answer.json()["choices"]
    assert all(len(mask) <= 3 for mask in choice["sampling_mask"])


@pytest.mark.asyncio
async def test_unknown_members_are_told_of_or_rejected() -> None:
    body = _body(top_k=3, topk=3)
    async with _gate() as client:
        told = await client.post(GENERATE, json=body)
    assert told.status_code == 200
    assert told.headers[WARNING].startswith("request-unknown-key; 'topk' is ignored")
    async with _gate(request_strict=True) as client:
        rejected = await client.post(GENERATE, json=body)
    error = rejected.json()["error"]
    assert (rejected.status_code, error["rule"]) == (400, "request-unknown-key")
    assert error["errors"][0]["pointer"] == "/sampling_params/topk"


@pytest.mark.asyncio
async def test_an_unknown_model_is_not_found() -> None:
    async with _gate() as client:
        answer = await client.post(
            "/v1/chat/completions", json={"model": "other", "messages": [], "top_k": 3}
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (404, 404, "NotFoundError")


@pytest.mark.parametrize(
    ("generation", "status"),
    [({"top_k": 5}, 200), ({"top_k": 0}, 400), ({"top_k": None, "temperature": 0.6}, 400)],
)
@pytest.mark.asyncio
async def test_sampling_defaults_are_those_of_the_models_generation_config(
    tmp_path: Path, generation: dict[str, Any], status: int
) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "generation_config.json").write_text(json.dumps(generation))
    answer = await _completion(model_root=tmp_path)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["rule"] == "sampling-mask-top-k"


@pytest.mark.parametrize("text", [None, "{"])
@pytest.mark.asyncio
async def test_unseen_sampling_defaults_refuse_nothing(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "toy").mkdir()
    if text is not None:
        (tmp_path / "toy" / "generation_config.json").write_text(text)
    assert (await _completion(model_root=tmp_path)).status_code == 200


@pytest.mark.parametrize("mode", ["auto", "vllm", "/elsewhere"])
def test_the_end_ids_of_the_generation_config_are_seen_where_it_gives_no_defaults(
    tmp_path: Path, mode: str
) -> None:
    (tmp_path / "toy").mkdir()
    text = json.dumps({"eos_token_id": [3, 5], "temperature": 0.6})
    (tmp_path / "toy" / "generation_config.json").write_text(text)
    settings = Settings(
        serve_config=f"vllm serve toy --generation-config {mode}",
        vllm_version=VERSION,
        model_root=tmp_path,
    )
    served = create_app(settings).state.gates.request_gate.served
    assert served.generation_end_ids == (None if mode == "/elsewhere" else {3, 5})
    assert served.temperature.value == {"auto": 0.6, "vllm": 1.0, "/elsewhere": None}[mode]


async def _completion(**given: Any) -> httpx.Response:
    """Ask without top_k a server whose defaults are the model's."""
    command = COMMAND.replace(" --generation-config vllm", "")
    simulated = f"{command} --override-generation-config.top_k 5"
    async with serving(simulator_of(VERSION, simulated)) as backend:
        settings = Settings(
            backend_url=backend, serve_config=command, vllm_version=VERSION, **given
        )
        async with serving(create_app(settings)) as url, httpx.AsyncClient(base_url=url) as client:
            return await client.post(
                "/v1/completions", json={"model": "toy", "prompt": "a", "max_tokens": 1}
            )


@pytest.mark.parametrize("path", ["/completions", "/v1/completions"])
@pytest.mark.asyncio
async def test_a_backend_url_that_ends_within_the_routes_hides_none(path: str) -> None:
    settings = Settings(
        backend_url="http://127.0.0.1:9/v1", serve_config=COMMAND, vllm_version=VERSION
    )
    async with (
        serving(create_app(settings)) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        answer = await client.post(path, json={"model": "toy", "prompt": "a", "top_k": 0})
    assert answer.status_code == 400
    assert answer.json()["error"]["rule"] == "sampling-mask-top-k"
