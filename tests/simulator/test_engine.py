from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from app.simulator.engine import Engine
from app.simulator.errors import EngineDead, InvalidRequest
from app.simulator.sampling_params import SamplingParams
from app.simulator.sequence import Step
from app.simulator.settings import SimulatorSettings

PROMPT = [5, 17, 99]


def _params(**given: Any) -> SamplingParams:
    return SamplingParams.parse({"top_k": 5, "ignore_eos": True, "max_tokens": 4, **given})


async def _run(engine: Engine, **given: Any) -> list[Step]:
    return [step async for step in engine.generate(PROMPT, _params(**given))]


@pytest.mark.asyncio
async def test_child_i_draws_with_seed_plus_i() -> None:
    engine = Engine(SimulatorSettings())

    together = await _run(engine, seed=10, n=3)

    for index in range(3):
        alone = await _run(engine, seed=10 + index)
        assert [s.token for s in together if s.index == index] == [s.token for s in alone]


@pytest.mark.asyncio
async def test_unseeded_requests_differ_and_follow_the_servers_seed() -> None:
    def tokens(steps: list[Step]) -> list[int]:
        return [step.token for step in steps]

    first, second = Engine(SimulatorSettings()), Engine(SimulatorSettings())

    drawn = tokens(await _run(first))

    assert drawn != tokens(await _run(first))
    assert drawn == tokens(await _run(second))
    assert drawn != tokens(await _run(Engine(SimulatorSettings(seed=1))))


@pytest.mark.asyncio
async def test_counters_tell_what_was_done() -> None:
    engine = Engine(SimulatorSettings())

    await _run(engine, n=2)

    assert engine.finished == {"length": 2, "abort": 0}
    assert (engine.prompt_tokens, engine.generated_tokens) == (3, 8)
    assert (engine.running, engine.waiting) == (0, 0)


@pytest.mark.asyncio
async def test_closing_the_iterator_aborts_the_request() -> None:
    engine = Engine(SimulatorSettings())

    async with aclosing(engine.generate(PROMPT, _params(n=2))) as steps:
        await anext(steps)
        assert engine.running == 1

    assert engine.running == 0
    assert engine.finished["abort"] == 2


@pytest.mark.asyncio
async def test_no_more_than_max_num_seqs_run_at_a_time() -> None:
    engine = Engine(SimulatorSettings(max_num_seqs=2, token_delay=0.001))
    most = 0

    async def watched() -> None:
        nonlocal most
        async for _ in engine.generate(PROMPT, _params()):
            most = max(most, engine.running)

    await asyncio.gather(*(watched() for _ in range(6)))

    assert most == 2
    assert engine.finished["length"] == 6


@pytest.mark.asyncio
async def test_a_waiting_request_that_is_cancelled_leaves_no_trace() -> None:
    engine = Engine(SimulatorSettings(max_num_seqs=1))
    async with aclosing(engine.generate(PROMPT, _params())) as steps:
        await anext(steps)
        waiting = asyncio.create_task(_run(engine))
        await asyncio.sleep(0)
        assert engine.waiting == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert engine.waiting == 0

    assert len(await _run(engine)) == 4


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([1, 1024], "Token id 1024 is out of vocabulary"),
        ([1] * 17, "The decoder prompt (length 17) is longer than the maximum model length of 16."),
        ([1] * 16, "The decoder prompt (length 16) plus the number of requested output tokens"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompt: list[int], text: str) -> None:
    engine = Engine(SimulatorSettings(max_model_len=16))

    with pytest.raises(InvalidRequest) as refusal:
        engine.check(prompt, _params())

    assert refusal.value.message.startswith(text)


@pytest.mark.asyncio
async def test_a_request_that_ends_the_engine_ends_it_for_all() -> None:
    engine = Engine(SimulatorSettings())

    with pytest.raises(EngineDead):
        await _run(engine, seed=2**63)

    assert engine.dead
    with pytest.raises(EngineDead) as refusal:
        await _run(engine)
    assert refusal.value.message.startswith("EngineCore encountered an issue.")
