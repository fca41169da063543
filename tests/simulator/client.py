"""Requests to a simulated server without a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings

GENERATE = "/inference/v1/generate"
PROMPT = [5, 17, 99]
VERSIONS = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


@asynccontextmanager
async def client_of(
    settings: SimulatorSettings | None = None, **headers: str
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_simulator(settings))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://simulator", headers=headers
    ) as client:
        yield client


def generation(**sampling: Any) -> dict[str, Any]:
    """Make a body of `/inference/v1/generate`."""
    given = {"top_k": 5, "seed": 7, "max_tokens": 6, "ignore_eos": True, **sampling}
    return {"token_ids": PROMPT, "sampling_params": given}


async def generate(body: dict[str, Any], settings: SimulatorSettings | None = None) -> Any:
    """Send one generation and give the decoded answer, which has to be a 200."""
    async with client_of(settings) as client:
        response = await client.post(GENERATE, json=body)
        assert response.status_code == 200, response.text
        return response.json()


async def events(
    path: str, body: dict[str, Any], settings: SimulatorSettings | None = None
) -> list[dict[str, Any]]:
    """Send one streamed request and give its events, without the closing `[DONE]`."""
    async with client_of(settings) as client:
        response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
