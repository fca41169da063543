"""Heavy bodies are judged in another process, with the same outcome."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.relay.examining import ExaminationProcess
from app.request_rules.checker import RequestChecker, is_heavy
from app.request_rules.counting import Counts, Tokens
from app.request_rules.examination import Examination
from app.request_rules.policy import Action, Policy
from app.request_rules.request import Route
from app.serving import simulator_of
from app.settings import Settings
from tests.request_rules.serving import served_by_command
from tests.support import serving

VERSION = "0.32.0"
COMMAND = (
    "vllm serve toy --return-sampling-mask --logprobs-mode processed_logprobs "
    "--enable-scale-out --max-model-len 100000 --generation-config vllm"
)
POLICY = Policy({"sampling-mask-top-k": Action.REPAIR})
MANY = [1] * 60_000


def _heavy(**sampling: Any) -> bytes:
    body = json.dumps({"token_ids": MANY, "sampling_params": sampling}).encode()
    assert is_heavy(body)
    return body


def _told(examination: Examination) -> Mapping[str, Any]:
    return {name: getattr(examination, name) for name in Examination.__slots__}


class _Counter:
    async def count(self, texts: Sequence[str], model: str | None) -> Counts:
        return {text: Tokens(1500, 7) for text in texts}


def test_many_values_many_escapes_and_very_long_texts_are_heavy() -> None:
    assert not is_heavy(b"[" + b"1," * 50_000 + b"1]")
    assert is_heavy(b"[" + b"1," * 50_001 + b"1]")
    assert not is_heavy(b'"' + b"x" * 8 * 2**20 + b'"')  # an image, say
    assert is_heavy(b'"' + b"x" * 16 * 2**20 + b'"')
    assert not is_heavy(b'"' + rb"\n" * 500_000 + b'"')
    assert is_heavy(b'"' + rb"\n" * 500_001 + b'"')


@pytest.mark.asyncio
async def test_the_outcome_is_the_same_and_nothing_is_judged_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = served_by_command(COMMAND)
    process = ExaminationProcess(served, POLICY, inject_seeds=True)
    here = RequestChecker(served, policy=POLICY, inject_seeds=True)
    apart = RequestChecker(served, policy=POLICY, inject_seeds=True, apart=process)
    bodies = [
        _heavy(top_k=5),
        _heavy(),
        _heavy(top_k=5, logprobs=-7, bogus=1),
        _heavy(top_k=5, bad_words=["x" * 2000]),
    ]
    expected = [here.examine(Route.GENERATE, body) for body in bodies[:3]]
    assert [bool(e.refusal) for e in expected] == [False, False, True]
    assert expected[1].body is not None

    def judge(*_: object) -> None:
        raise AssertionError("judged in this process")

    monkeypatch.setattr(apart, "judge", judge)
    try:
        examined = [apart.examine(Route.GENERATE, body) for body in bodies]
        assert all(e.settle is not None for e in examined)
        settled = [await e.settle(_Counter()) for e in examined if e.settle is not None]
    finally:
        await process.aclose()
    assert list(map(_told, settled[:3])) == list(map(_told, expected))
    refusal = settled[3].refusal
    assert refusal is not None
    assert "at least 1500 tokens" in refusal["error"]["message"]


@pytest.mark.asyncio
async def test_where_the_process_dies_it_is_judged_here_and_another_started() -> None:
    served = served_by_command(COMMAND)
    process = ExaminationProcess(served, POLICY, inject_seeds=False)
    checker = RequestChecker(served, policy=POLICY, apart=process)
    body = _heavy(top_k=5, logprobs=-7)

    async def rules() -> list[tuple[str, str]]:
        settle = checker.examine(Route.GENERATE, body).settle
        assert settle is not None
        return list((await settle(_Counter())).findings)

    async def pid() -> int:
        assert process._pool is not None
        return await asyncio.wrap_future(process._pool.submit(os.getpid))

    try:
        first = await rules()
        before = await pid()
        os.kill(before, signal.SIGKILL)
        assert await rules() == first == [("request-logprobs-range", "error")]
        assert await rules() == first
        assert await pid() != before
    finally:
        await process.aclose()


@pytest.mark.asyncio
async def test_where_no_process_can_be_had_it_is_judged_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError("no semaphores here")

    monkeypatch.setattr("app.relay.examining.ProcessPoolExecutor", denied)
    served = served_by_command(COMMAND)
    process = ExaminationProcess(served, POLICY, inject_seeds=False)
    settle = (
        RequestChecker(served, policy=POLICY, apart=process)
        .examine(Route.GENERATE, _heavy(top_k=5, logprobs=-7))
        .settle
    )
    assert settle is not None
    assert (await settle(_Counter())).findings == [("request-logprobs-range", "error")]
    await process.aclose()


@pytest.mark.asyncio
async def test_a_heavy_request_is_answered_through_the_gate() -> None:
    async with serving(simulator_of(VERSION, COMMAND)) as backend:
        settings = Settings(backend_url=backend, serve_config=COMMAND, vllm_version=VERSION)
        async with (
            serving(create_app(settings)) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            answered, refused = await asyncio.gather(
                *(
                    client.post(
                        "/inference/v1/generate",
                        content=_heavy(max_tokens=1, **sampling),
                        headers={"content-type": "application/json"},
                    )
                    for sampling in ({"top_k": 5}, {})
                )
            )
    assert answered.status_code == 200, answered.text
    assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "sampling-mask-top-k")
