"""A repaired body is what the backend gets, and the client is told."""

from __future__ import annotations

import pytest

from app.request_rules.examination import Examination
from app.request_rules.seed_place import SeedPlace
from tests.relay.faulty import Peer, Seen
from tests.relay.harness import scene


class _Repairs:
    def __init__(self, examination: Examination) -> None:
        self._examination = examination

    def route_of(self, method: str, path: str) -> str | None:
        return path

    def examine(self, route: str, body: bytes) -> Examination:
        return self._examination


async def _answer(request: Seen, peer: Peer) -> None:
    await peer.answer(request.body, "content-type: application/json")


@pytest.mark.asyncio
async def test_the_backend_gets_the_repaired_body_with_its_length() -> None:
    repaired = b'{"prompt": "a", "top_k": 20}'
    examiner = _Repairs(Examination(body=repaired, repairs=["sampling-mask-top-k; top_k=20"]))
    async with scene(_answer, examiner=examiner) as (backend, _, client):
        answer = await client.ask("POST", "/v1/completions", body=b'{"prompt": "a"}')
    (seen,) = backend.seen
    assert seen.body == repaired
    assert seen.all("content-length") == [str(len(repaired))]
    assert answer.all("x-vllm-admission-repair") == ["sampling-mask-top-k; top_k=20"]


@pytest.mark.asyncio
async def test_a_seed_is_put_into_the_repaired_body() -> None:
    repaired = b'{"prompt": "a", "top_k": 20}'
    place = SeedPlace(len(repaired) - 1, len(repaired) - 1, b', "seed": ')
    examiner = _Repairs(
        Examination(body=repaired, repairs=["r; top_k=20"], lacks_seed=True, seed_place=place)
    )
    async with scene(_answer, examiner=examiner) as (backend, _, client):
        answer = await client.ask("POST", "/v1/completions", body=b'{"prompt": "a"}')
    (seed,) = answer.all("x-vllm-admission-seed")
    (seen,) = backend.seen
    assert seen.body == b'{"prompt": "a", "top_k": 20, "seed": ' + seed.encode() + b"}"
    assert seen.all("content-length") == [str(len(seen.body))]


@pytest.mark.asyncio
async def test_control_characters_of_a_client_reach_no_header() -> None:
    examiner = _Repairs(Examination(warnings=["a; \x00\x0b\x7f b\r\nx: y"]))
    async with scene(_answer, examiner=examiner) as (_, _, client):
        answer = await client.ask("POST", "/v1/completions", body=b"{}")
    assert answer.all("x-vllm-admission-warning") == ["a;     b  x: y"]
