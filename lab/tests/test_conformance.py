"""Clients cannot tell the gate from real vLLM, except that nothing bad gets through."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from app.main import create_app
from lab.server import Server, is_healthy
from lab.tests.rollouts import gate_settings
from tests.conformance.comparison import Both, ask, differences_of
from tests.conformance.recorder import tapped
from tests.conformance.requests import conformance_cases
from tests.contract.cases import CHAT, COMPLETIONS, GENERATE, MESSAGES, PROMPT, Case
from tests.contract.contract import Answer, differences
from tests.relay.harness import Answer as RawAnswer
from tests.simulator.serving import serving as serving_in_a_thread
from tests.support import serving

SEEDED = {"temperature": 1.0, "top_p": 0.9, "seed": 7, "max_tokens": 6}
MASKED = {**SEEDED, "top_k": 4}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@asynccontextmanager
async def _tapped_gate(server: Server) -> AsyncIterator[tuple[Any, str]]:
    async with tapped(server.url) as tap:
        settings = gate_settings(server).model_copy(
            update={"backend_url": tap.url, "drift_interval": 0.0}
        )
        async with serving(create_app(settings)) as gated:
            yield tap, gated


def _as_contract(case: Case, answer: RawAnswer) -> Answer:
    return Answer(case.name, answer.status, tuple(answer.fields), answer.body.decode())


async def _compare(server: Server) -> tuple[int, list[str]]:
    """Ask everything both ways; gives how much passed, and all differences."""
    found: list[str] = []
    passed = 0
    async with _tapped_gate(server) as (tap, gated):
        for case in conformance_cases():
            field = f"x-request-id: {re.sub('[^a-z0-9]+', '-', case.name.lower())}"
            direct = await ask(server.url, case, field)
            tap.clear()
            answer = await ask(gated, case, field)
            both = Both(case, direct, answer)
            if both.refused:
                if not both.fails:
                    found.append(f"{case.name}: refused, and vLLM takes it: {answer.body!r}")
                continue
            heard = await tap.answer(bodiless=both.bodiless)
            if heard is None:
                found.append(f"{case.name}: vLLM was not asked")
                continue
            passed += 1
            if answer.first("location") is None:
                found += [f"{case.name}: on the wire, {d}" for d in differences_of(heard, answer)]
            if not case.races_in(server.version):
                told = differences(_as_contract(case, direct), _as_contract(case, answer))
                found += [f"{case.name}: {difference}" for difference in told]
    return passed, found


def test_what_passes_is_vllms_own_and_what_does_not_vllm_refuses_too(default_vllm: Server) -> None:
    passed, found = asyncio.run(_compare(default_vllm))

    assert found == []
    assert passed > 150


@pytest.fixture(scope="module")
def gate(vllm: Server) -> Iterator[str]:
    app = create_app(gate_settings(vllm))
    with serving_in_a_thread(app, lifespan="on") as url:
        yield url


@pytest.fixture
def client(gate: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gate}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_official_client_completes(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    answer = client.completions.create(
        model="tiny", prompt="hello", logprobs=3, n=2, extra_body={"top_k": 4}, **_seeded()
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert len(choice.logprobs.token_logprobs) == 6
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


def test_the_official_client_chats_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        logprobs=True,
        top_logprobs=4,
        extra_body={"top_k": 4},
        **_seeded(),
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [4] * 6


def test_the_official_client_streams_what_it_would_get_at_once(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    extra = {"top_k": 4}
    whole = client.chat.completions.create(
        model="tiny", messages=messages, extra_body=extra, **_seeded()
    )
    text, finished, tokens = "", None, 0
    stream = client.chat.completions.create(
        model="tiny",
        messages=messages,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
        **_seeded(),
    )
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finished = choice.finish_reason or finished
        tokens = chunk.usage.completion_tokens if chunk.usage is not None else tokens
    assert (text, finished) == (whole.choices[0].message.content, whole.choices[0].finish_reason)
    assert tokens == 6
    parts = client.completions.create(
        model="tiny", prompt="hello", stream=True, extra_body=extra, **_seeded()
    )
    once = client.completions.create(model="tiny", prompt="hello", extra_body=extra, **_seeded())
    assert "".join(part.choices[0].text for part in parts) == once.choices[0].text


def test_the_official_client_calls_tools_as_it_would_without_the_gate(
    vllm: Server, client: openai.OpenAI
) -> None:
    with openai.OpenAI(base_url=f"{vllm.url}/v1", api_key="none", max_retries=0) as direct:
        through, without = (
            one.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "weather?"}],
                tools=[WEATHER],
                tool_choice={"type": "function", "function": {"name": "weather"}},
                extra_body={"top_k": 4},
                **{**_seeded(), "max_tokens": 60},
            )
            for one in (client, direct)
        )
    calls, same = through.choices[0].message.tool_calls, without.choices[0].message.tool_calls
    assert calls is not None
    assert same is not None
    (call,), (like,) = calls, same
    assert call.type == like.type == "function"
    assert call.function == like.function
    assert call.function.name == "weather"


@pytest.mark.parametrize(
    ("change", "error", "status", "rule"),
    [
        ({"model": "other"}, openai.NotFoundError, 404, "request-model"),
        ({"temperature": -1}, openai.BadRequestError, 400, "sampling-mask-temperature"),
        ({"temperature": 0}, openai.BadRequestError, 400, "sampling-mask-temperature"),
        ({"extra_body": {}}, openai.BadRequestError, 400, "sampling-mask-top-k"),
        ({"max_tokens": 4096}, openai.BadRequestError, 400, None),
        ({"top_logprobs": 2**20}, openai.BadRequestError, 400, "request-logprobs-limit"),
        ({"messages": "hello"}, openai.BadRequestError, 400, None),
        ({"seed": 2**63}, openai.BadRequestError, 400, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_raises_what_it_should(
    client: openai.OpenAI,
    change: dict[str, Any],
    error: type[openai.APIStatusError],
    status: int,
    rule: str | None,
    stream: bool,
) -> None:
    request: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "logprobs": True,
        "top_logprobs": 4,
        "extra_body": {"top_k": 4},
        **_seeded(),
        **change,
    }
    with pytest.raises(error) as raised:
        client.chat.completions.create(stream=stream, **request)
    assert type(raised.value) is error
    assert raised.value.status_code == status
    body = raised.value.body
    assert isinstance(body, dict)
    assert body["code"] == status
    assert body.get("rule") == rule


def test_curl_streams_through_the_gate(gate: str) -> None:
    body = {"model": "tiny", "prompt": "hello", "stream": True, **MASKED}
    done = subprocess.run(
        ["curl", "-sSN", f"{gate}{COMPLETIONS}", "--json", json.dumps(body)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    *events, end = done.stdout.decode().removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    assert sum(bool(_choices(event)) for event in events) == 6


def _choices(event: str) -> list[Any]:
    choices: list[Any] = json.loads(event.removeprefix("data: "))["choices"]
    return choices


def _seeded() -> dict[str, Any]:
    return dict(SEEDED)


# Each ends vLLM's engine, and with it every request of everybody, or a thread of its server.
KILLERS: dict[str, dict[str, Any]] = {
    "request-seed-range": {"seed": 2**63},
    "request-seed-children": {"seed": 2**63 - 1, "n": 2},
    "request-allowed-token-ids": {"allowed_token_ids": [i % 1024 for i in range(1025)]},
    "request-logit-bias-size": {"logit_bias": {str(i): 1.0 for i in range(1025)}},
    "request-stop-token-ids": {"stop_token_ids": list(range(129)), "min_tokens": 1},
    "request-bad-words": {"bad_words": [f"{i:04d}" * 100 for i in range(100)]},
}


def _killing_bodies(change: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    sampling = {**MASKED, **change}
    yield GENERATE, {"token_ids": PROMPT, "sampling_params": sampling}
    yield COMPLETIONS, {"model": "tiny", "prompt": "hello", **sampling}
    yield CHAT, {"model": "tiny", "messages": MESSAGES, **sampling}


def test_what_kills_the_engine_is_refused_and_the_engine_lives(vllm: Server, gate: str) -> None:
    refused: set[str] = set()
    for rule, change in KILLERS.items():
        for path, body in _killing_bodies(change):
            answer = httpx.post(gate + path, json=body, timeout=60)
            assert answer.status_code == 400, (rule, path, answer.text[:300])
            # Some are refused by vLLM itself on the OpenAI routes; those it is left to.
            refused |= {entry["rule"] for entry in answer.json()["error"].get("errors", ())}
    infinite = json.dumps({"token_ids": PROMPT, "sampling_params": MASKED}).replace(
        '"top_k": 4', '"top_k": 4, "logit_bias": {"5": Infinity}'
    )
    answer = httpx.post(
        gate + GENERATE, content=infinite, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    refused |= {entry["rule"] for entry in answer.json()["error"]["errors"]}

    assert refused >= {*KILLERS, "request-logit-bias-finite"}
    assert is_healthy(vllm.url)
    body = {"token_ids": PROMPT, "sampling_params": {**MASKED, "logprobs": 4}}
    alive = httpx.post(gate + GENERATE, json=body, timeout=60)
    assert alive.status_code == 200
    assert len(alive.json()["choices"][0]["token_ids"]) == 6
