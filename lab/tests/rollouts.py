"""Seeded generations: what to ask, asking it, and replaying what came back."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.main import create_app
from app.replay.report import Report, replay
from app.settings import Settings
from lab.server import Server
from tests.support import serving

GENERATE = "/inference/v1/generate"
CONCURRENCY = 32
# More than any top_k asked for, so that a mask's logprobs are all there.
LOGPROBS = 128
# Drafts of what the sequence already holds.
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
# Every seed that vLLM takes is a signed 64-bit number; -1 would mean "none".
SEEDS = (0, 1, -2, 2**31, 2**32 + 1, 2**62 + 12345, 2**63 - 1, -(2**63), -(2**40))
# What shapes a row besides the filters, by name.
FEATURES: dict[str, dict[str, Any]] = {
    "penalties": {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.3,
    },
    "logit bias": {"logit_bias": {"5": 3.0, "17": -4.0, "99": 2.5}},
    "structured output": {"structured_outputs": {"regex": "[a-z]{8,30}"}},
    "allowed ids and bad words": {"allowed_token_ids": list(range(10, 200)), "bad_words": ["a"]},
    # Up to 0.28 only the choices that end last come back, unless the final output is asked for.
    "three choices": {"n": 3, "seed": 11, "output_kind": 2},
    "stream": {"stream": True},
}
# Three ids to choose from, so that what is drafted is often what is drawn.
OFTEN_DRAFTED: dict[str, Any] = {
    "allowed_token_ids": [5, 17, 99],
    "temperature": 2.0,
    "top_p": 1.0,
    "min_p": 0.0,
}


@dataclass(frozen=True, slots=True)
class Rollout:
    """A request, and the answer: a body, or the text of a stream."""

    request: Mapping[str, Any]
    response: Any


@dataclass
class Tally:
    """Rows replayed so far, by group, for the summary at the end."""

    groups: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, group: str, reports: Iterable[Report]) -> Counter[str]:
        """Add up a group's reports and give its counts."""
        counts = self.groups.setdefault(group, Counter())
        for report in reports:
            rows = report.rows
            for outcome in ("total", "exact", "mismatch", "undecidable"):
                counts[outcome] += rows[outcome]
            counts["rollouts"] += 1
        return counts

    def lines(self) -> list[str]:
        """Say what was replayed."""
        return [
            f"{group}: {n['rollouts']} generations, {n['total']} rows, {n['exact']} exact, "
            f"{n['mismatch']} mismatched, {n['undecidable']} undecidable "
            f"({n['undecidable'] / max(n['total'], 1):.2%})"
            for group, n in self.groups.items()
        ]


def generation_requests(
    count: int, *, variation: int, tokens: int = 20, stream: bool = False, **sampling: Any
) -> list[dict[str, Any]]:
    """Make `count` requests over the range of sampling parameters; `sampling` overrides.

    Another `variation` gives other requests, the same one the same.
    """
    choose = random.Random(variation)  # noqa: S311 - the same requests every time
    return [
        {
            "token_ids": [choose.randrange(1000) for _ in range(choose.randint(1, 40))],
            "stream": stream,
            "sampling_params": {
                "temperature": choose.uniform(0.3, 2.0),
                "top_k": choose.randint(1, 100),
                "top_p": choose.uniform(0.3, 1.0),
                "min_p": choose.choice([0.0, 0.0, 0.02, 0.1]),
                "seed": choose.choice([*SEEDS, choose.randrange(2**63)]),
                "logprobs": LOGPROBS,
                "max_tokens": tokens,
                "ignore_eos": True,
            }
            | sampling,
        }
        for _ in range(count)
    ]


def collect(server: Server, requests: Sequence[dict[str, Any]]) -> list[Rollout]:
    """Send the requests to the server through the gate, many at a time."""
    return asyncio.run(_collect(server, requests))


async def _collect(server: Server, requests: Sequence[dict[str, Any]]) -> list[Rollout]:
    settings = gate_settings(server)
    limits = httpx.Limits(max_connections=CONCURRENCY)
    async with (
        serving(create_app(settings)) as url,
        httpx.AsyncClient(base_url=url, timeout=300.0, limits=limits, trust_env=False) as client,
    ):
        return await asyncio.gather(*(_generate(client, request) for request in requests))


def gate_settings(server: Server) -> Settings:
    """Put the gate in front of a server, which it knows by the server's own command."""
    envelope = {"args": list(server.command), "vllm_version": server.version}
    return Settings(
        backend_url=server.url,
        serve_config=json.dumps(envelope),
        vllm_version=server.version,
    )


async def _generate(client: httpx.AsyncClient, request: dict[str, Any]) -> Rollout:
    response = await client.post(GENERATE, json=request)
    assert response.status_code == 200, (request, response.text[:2000])
    return Rollout(request, response.text if request["stream"] else response.json())


def replayed(server: Server, rollouts: Iterable[Rollout], **options: Any) -> list[Report]:
    """Replay each rollout with the server's version."""
    return [
        replay(
            {
                "vllm_version": server.version,
                "request": rollout.request,
                "response": rollout.response,
                "options": options,
            }
        )
        for rollout in rollouts
    ]
