"""The backend's tokenizer settles what bytes cannot: over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.relay.counting import BackendTokens, CountingLimits
from app.relay.upstream import Backend
from app.request_rules.checker import RequestChecker
from app.request_rules.counting import Tokens
from app.serving import simulator_of
from app.settings import Settings
from tests.relay.faulty import FaultyBackend, Peer, Seen, faulty_backend
from tests.relay.harness import Answer, Gate, RawClient, client_of, eventually, gate_to, scene
from tests.request_rules.serving import served_by_command
from tests.support import serving

VERSION = "0.32.0"
COMMAND = (
    "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve toy --enable-scale-out --max-model-len 64 "
    "--generation-config vllm"
)
WARNING = "x-vllm-admission-warning"
CHECKER = RequestChecker(served_by_command(COMMAND))


def _generation(route: str, words: list[str]) -> dict[str, Any]:
    sampling = {"max_tokens": 1, "bad_words": words}
    if route == "/inference/v1/generate":
        return {"token_ids": [1, 2], "sampling_params": sampling}
    head: dict[str, Any] = {"prompt": "a"}
    if route == "/v1/chat/completions":
        head = {"messages": [{"role": "user", "content": "a"}]}
    return head | sampling


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "route", ["/inference/v1/generate", "/v1/completions", "/v1/chat/completions"]
)
async def test_tokens_decide_and_the_engine_lives(route: str) -> None:
    """The simulator's tokenizer has a token for each byte, and its engine dies as vLLM's."""
    async with serving(simulator_of(VERSION, COMMAND)) as backend:
        settings = Settings(backend_url=backend, serve_config=COMMAND, vllm_version=VERSION)
        async with (
            serving(create_app(settings)) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            fits = await client.post(route, json=_generation(route, ["x" * 512, "y" * 512]))
            refused = await client.post(route, json=_generation(route, ["x" * 512, "y" * 513]))
            after = await client.get("/health")
            direct = await client.post(
                backend + route, json=_generation(route, ["x" * 512, "y" * 513])
            )
            dead = await client.get(backend + "/health")
    assert fits.status_code == 200, fits.text
    assert WARNING not in fits.headers
    assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "request-bad-words")
    assert after.status_code == 200
    assert (direct.status_code, dead.status_code) == (500, 503)


def _body(words: list[str], **members: Any) -> bytes:
    return json.dumps({"prompt": "a", "bad_words": words, **members}).encode()


def _tokens(count: int) -> bytes:
    return json.dumps({"count": count, "max_model_len": 9, "tokens": [7] * count}).encode()


def _is_question(request: Seen) -> bool:
    return request.line.startswith("POST /tokenize ")


async def _one_token(request: Seen, peer: Peer) -> None:
    await peer.answer(_tokens(1) if _is_question(request) else b"{}")


async def _ask(client: RawClient, body: bytes, *fields: str) -> Answer:
    return await client.ask("POST", "/v1/completions", *fields, body=body)


@pytest.mark.asyncio
async def test_a_question_says_who_asks_and_of_which_model_and_is_asked_once() -> None:
    async with scene(_one_token, examiner=CHECKER) as (backend, _, client):
        body = _body(["ü" * 200], model="toy")
        first = await _ask(client, body, "authorization: Bearer k", "cookie: c", "x-request-id: r")
        again = await _ask(client, body)
    assert (first.status, again.status) == (200, 200)
    question, request, repeated = backend.seen
    assert json.loads(question.body) == {
        "prompt": "ü" * 200,
        "add_special_tokens": False,
        "model": "toy",
    }
    assert question.all("authorization") == ["Bearer k"]
    assert question.all("content-type") == ["application/json"]
    assert question.all("cookie") == question.all("x-request-id") == []
    assert (request.body, repeated.body) == (body, body)


@pytest.mark.asyncio
async def test_questions_go_side_by_side_but_not_all_at_once() -> None:
    most = 0
    waiting: list[asyncio.Event] = []

    async def script(request: Seen, peer: Peer) -> None:
        nonlocal most
        if _is_question(request):
            waiting.append(asyncio.Event())
            most = max(most, sum(not event.is_set() for event in waiting))
            if len(waiting) < 4:
                await waiting[len(waiting) - 1].wait()
            else:
                for event in waiting:
                    event.set()
        await _one_token(request, peer)

    async with scene(script, examiner=CHECKER) as (backend, gate, client):
        gate.relay.tokens = BackendTokens(CountingLimits(questions=4))
        answer = await _ask(client, _body([f"{i:03}" * 40 for i in range(20)]))
    assert answer.status == 200
    assert most == 4
    assert len(backend.seen) > 5


Fault = Callable[[Peer], Awaitable[None]]


async def _missing(peer: Peer) -> None:
    await peer.answer(b'{"detail":"Not Found"}', status="404 Not Found")


async def _no_json(peer: Peer) -> None:
    await peer.answer(b"<html>")


async def _contradiction(peer: Peer) -> None:
    await peer.answer(b'{"count": 1, "tokens": []}')


async def _reset(peer: Peer) -> None:
    peer.reset()


async def _silence(peer: Peer) -> None:
    await peer.until_closed()
    peer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", [_missing, _no_json, _contradiction, _reset, _silence])
async def test_without_an_answer_bytes_decide_and_the_client_is_told(fault: Fault) -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await (fault(peer) if _is_question(request) else peer.answer(b"{}"))

    async with scene(script, examiner=CHECKER) as (backend, gate, client):
        gate.relay.tokens = BackendTokens(CountingLimits(seconds=0.1))
        passed = await _ask(client, _body(["x" * 4096]))
        refused = await _ask(client, _body(["x" * 4097]))
    assert passed.status == 200
    (warning,) = passed.all(WARNING)
    assert warning.startswith("request-bad-words; the tokens of bad_words could not be counted")
    assert refused.status == 400
    assert sum(not _is_question(request) for request in backend.seen) == 1


async def _busy(peer: Peer) -> None:
    await peer.answer(b"{}", status="503 Service Unavailable")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "status"),
    [(_reset, 503), (_silence, 503), (_busy, 503), (_missing, 200), (_no_json, 200)],
)
async def test_who_keeps_the_backend_busy_gets_nothing_past_the_rule(
    fault: Fault, status: int
) -> None:
    """It has counted before, so that it can; what passes in doubt would end the engine."""
    works = True

    async def script(request: Seen, peer: Peer) -> None:
        if works or not _is_question(request):
            await _one_token(request, peer)
        else:
            await fault(peer)

    async with scene(script, examiner=CHECKER) as (_, gate, client):
        gate.relay.tokens = BackendTokens(CountingLimits(seconds=0.2))
        before = await _ask(client, _body(["x" * 2000]))
        works = False
        during = await _ask(client, _body(["y" * 2000]))
        known = await _ask(client, _body(["x" * 100]))
    assert (before.status, during.status, known.status) == (200, status, 200)
    assert (during.first("retry-after") is not None) is (status == 503)


@pytest.mark.asyncio
async def test_a_client_that_leaves_ends_the_question() -> None:
    async def script(request: Seen, peer: Peer) -> None:
        await backend.hang(peer)

    async with _hanging(script) as (backend, gate, client):
        await client.send("POST", "/v1/completions", body=_body(["x" * 2000]))
        await eventually(lambda: backend.seen)
        client.leave()
        async with asyncio.timeout(2):
            await backend.aborted.wait()
        await eventually(
            lambda: gate.metric(
                "proxy_requests_total", route="/v1/completions", outcome="client-left"
            )
        )
    assert [request.line.split()[1] for request in backend.seen] == ["/tokenize"]


@asynccontextmanager
async def _hanging(
    script: Callable[[Seen, Peer], Awaitable[None]],
) -> AsyncIterator[tuple[FaultyBackend, Gate, RawClient]]:
    async with (
        faulty_backend(script) as backend,
        gate_to(backend.url, examiner=CHECKER) as gate,
        client_of(gate.port) as client,
    ):
        yield backend, gate, client


@pytest.mark.asyncio
async def test_what_is_remembered_is_bounded_in_number_and_age() -> None:
    tokens = BackendTokens(CountingLimits(remembered=2, longest=3, keep_seconds=0.02))
    for text in ("a", "b", "c", "long"):
        tokens.remember("m", text, Tokens(1, 7))
    assert [tokens.recall("m", text) for text in ("a", "b", "c", "long")] == [
        None,
        Tokens(1, 7),
        Tokens(1, 7),
        None,
    ]
    assert tokens.recall(None, "c") is None
    await asyncio.sleep(0.03)
    assert tokens.recall("m", "c") is None


@pytest.mark.asyncio
async def test_a_dead_backend_leaves_all_uncounted() -> None:
    backend = Backend("http://127.0.0.1:9", connect_timeout=0.5, idle_timeout=1)
    try:
        counter = BackendTokens().of(backend, [])
        assert await counter.count(["a", "b"], None) == {"a": None, "b": None}
    finally:
        await backend.aclose()
