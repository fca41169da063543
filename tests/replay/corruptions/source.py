"""Honest cases: what the simulated backend answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import httpx

from app.simulator.model import ToyModel
from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings
from tests.replay.corruptions.rows import VOCABULARY, Case

VERSIONS = ("0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
# A server may be asked for this many.
_MOST_LOGPROBS = 128
# More than any mask has ids (ties), so that every member has a logprob.
_BESIDE_MASK = 4
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.3, "top_k": 12, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 2.0, "top_k": 48, "top_p": 0.99, "logit_bias": {"5": 3.0, "99": -2.0}},
)
_MOST_SEED = 2**62


def honest_case(number: int, rows: int, **sampling: Any) -> Case:
    """Give the `number`-th honest case of `rows` tokens; versions and parameters take turns."""
    rng = random.Random(number)  # noqa: S311 - the same cases every time
    version = VERSIONS[number % len(VERSIONS)]
    shape = SAMPLING[number % len(SAMPLING)]
    params = {
        **shape,
        "seed": rng.randrange(_MOST_SEED),
        "logprobs": shape["top_k"] + _BESIDE_MASK,
        "max_tokens": rows,
        "ignore_eos": True,
        **sampling,
    }
    if params.get("n", 1) > 1:
        params["output_kind"] = 2
    prompt = [rng.randrange(VOCABULARY - 8) for _ in range(rng.randint(3, 40))]
    body = {
        "token_ids": prompt,
        "sampling_params": {name: value for name, value in params.items() if value is not None},
    }
    return answered(version, body)


def answered(
    version: str, request: Mapping[str, Any], *, model_seed: int = 0, **settings: Any
) -> Case:
    """Give the request, and what a server of that version answers; the same every time."""
    app = _server(version, model_seed, tuple(settings.items()))
    response = asyncio.run(_post(app, request))
    return {"vllm_version": version, "request": dict(request), "response": response}


@lru_cache(maxsize=32)
def _server(version: str, model_seed: int, settings: tuple[tuple[str, Any], ...]) -> Any:
    chosen = {"max_logprobs": _MOST_LOGPROBS, **dict(settings)}
    app = create_simulator(SimulatorSettings(vllm_version=version, **chosen))
    app.state.engine.model = ToyModel(model_seed)
    return app


async def _post(app: Any, request: Mapping[str, Any]) -> Any:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://simulator") as client:
        response = await client.post("/inference/v1/generate", json=request, timeout=None)
    assert response.status_code == 200, response.text
    return response.json()
