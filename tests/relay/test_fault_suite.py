"""Faults in bulk over real sockets: nothing leaks, nothing hangs, every client has its end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.relay.chaos import FATES, Held, chaos, held_again
from tests.relay.test_fleet import closed_port


@pytest.mark.asyncio
async def test_every_fault_has_its_honest_end() -> None:
    async with AsyncExitStack() as stack:
        scene = await chaos(stack, f"http://127.0.0.1:{closed_port()}")
        await asyncio.gather(*(scene.visit(name, None) for name in FATES))
        await scene.settle()
    assert scene.dishonest == []
    assert scene.ends.total() == len(FATES)


@pytest.mark.asyncio
async def test_a_thousand_clients_that_leave_at_random_moments_leave_nothing() -> None:
    async with AsyncExitStack() as stack:
        scene = await chaos(stack, f"http://127.0.0.1:{closed_port()}", seed=7)
        await scene.run(50, 10, leaving=0.0)
        await scene.settle()
        before = Held.now()
        await scene.run(1000, 50, leaving=1.0)
        await scene.settle()
        after = await held_again(before)
    assert scene.ends["left"] == 1000
    assert after.tasks <= before.tasks
    assert after.files <= before.files


@pytest.mark.asyncio
async def test_a_short_soak_leaves_nothing_and_ends_honestly() -> None:
    async with AsyncExitStack() as stack:
        scene = await chaos(stack, f"http://127.0.0.1:{closed_port()}", seed=3)
        await scene.run(50, 10, leaving=0.0)
        await scene.settle()
        before = Held.now()
        await scene.run(450, 32, leaving=0.1)
        await scene.settle()
        after = await held_again(before)
    assert scene.dishonest == []
    assert scene.ends.total() == 500
    assert after.tasks <= before.tasks
    assert after.files <= before.files
