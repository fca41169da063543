"""Places for requests: how many, in which order, and what becomes of who gives up."""

from __future__ import annotations

import asyncio

import pytest

from app.relay.capacity import Capacity, CapacityLimits
from app.relay.faults import Overloaded
from tests.relay.faulty import Peer, Seen, faulty_backend
from tests.relay.harness import Answer, client_of, eventually, gate_to


@pytest.mark.asyncio
async def test_without_a_bound_everybody_has_a_place() -> None:
    capacity = Capacity(CapacityLimits())
    for _ in range(1000):
        await capacity.take()
    assert capacity.taken == 1000


@pytest.mark.asyncio
async def test_places_are_handed_on_in_the_order_of_asking() -> None:
    capacity = Capacity(CapacityLimits(in_flight=1, queue=3))
    await capacity.take()
    order: list[int] = []

    async def ask(number: int) -> None:
        await capacity.take()
        order.append(number)
        capacity.give_back()

    asking = [asyncio.create_task(ask(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert capacity.waiting == 3
    with pytest.raises(Overloaded, match="1 requests are in flight and 3 wait"):
        await capacity.take()
    capacity.give_back()
    await asyncio.gather(*asking)
    assert (order, capacity.taken, capacity.waiting) == ([0, 1, 2], 0, 0)


@pytest.mark.asyncio
async def test_who_waits_too_long_or_is_cancelled_leaves_the_queue() -> None:
    capacity = Capacity(CapacityLimits(in_flight=1, queue=2, wait=0.02))
    await capacity.take()
    with pytest.raises(Overloaded, match=r"waited 0\.02 s"):
        await capacity.take()
    cancelled = asyncio.create_task(capacity.take())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert (capacity.waiting, capacity.taken) == (0, 1)
    capacity.give_back()
    assert capacity.taken == 0


@pytest.mark.asyncio
async def test_a_place_given_to_who_is_just_giving_up_is_handed_on() -> None:
    capacity = Capacity(CapacityLimits(in_flight=1, queue=2))
    await capacity.take()
    first, second = (asyncio.create_task(capacity.take()) for _ in range(2))
    await asyncio.sleep(0)
    capacity.give_back()
    first.cancel()
    await asyncio.wait({first, second})
    assert first.cancelled()
    assert second.result() is None
    assert (capacity.taken, capacity.waiting) == (1, 0)


@pytest.mark.asyncio
async def test_above_the_bound_requests_are_refused_and_probes_are_not() -> None:
    release = asyncio.Event()

    async def script(request: Seen, peer: Peer) -> None:
        if "/health" not in request.line:
            await release.wait()
        await peer.answer(b"done")

    async def ask(port: int) -> Answer:
        async with client_of(port) as client:
            return await client.ask("POST", "/v1/completions", body=b"{}")

    limits = CapacityLimits(in_flight=1, queue=1, wait=5)
    async with faulty_backend(script) as backend, gate_to(backend.url, capacity=limits) as gate:
        first = asyncio.create_task(ask(gate.port))
        await eventually(lambda: backend.seen)
        second = asyncio.create_task(ask(gate.port))
        await eventually(lambda: gate.metric("proxy_queue_depth") == 1)
        third = await ask(gate.port)
        async with client_of(gate.port) as client:
            alive = await client.ask("GET", "/health")
        release.set()
        answers = [await first, await second]
        assert gate.metric("proxy_queue_depth") == 0
        overloaded = {"route": "other", "outcome": "overloaded"}
        assert gate.metric("proxy_requests_total", **overloaded) == 1
    assert alive.body == b"done"
    assert [answer.body for answer in answers] == [b"done", b"done"]
    assert (third.status, third.first("retry-after")) == (503, "5")
    assert b"VLLM_ADMISSION_MAX_IN_FLIGHT" in third.body
    assert b'"code": 503' in third.body
