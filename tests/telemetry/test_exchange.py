from __future__ import annotations

import asyncio

import pytest

from app.telemetry.exchange import Exchange, Party, exchange_of


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("app.telemetry.exchange.time.perf_counter", clock)
    return clock


async def waited(clock: Clock, seconds: float) -> None:
    """Let time pass while whoever awaits this is suspended."""
    asyncio.get_running_loop().call_soon(setattr, clock, "now", clock.now + seconds)
    await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_own_time_and_each_partys_are_told_apart(clock: Clock) -> None:
    exchange = Exchange()

    async def work() -> str:
        clock.now += 1
        await waited(clock, 10)
        exchange.waits_for = Party.BACKEND
        clock.now += 2
        await waited(clock, 100)
        await waited(clock, 1000)
        exchange.waits_for = Party.CLIENT
        await waited(clock, 20)
        clock.now += 4
        return "done"

    assert await exchange.timed(work()) == "done"
    assert (exchange.own, exchange.client, exchange.backend) == (7, 30, 1100)


@pytest.mark.asyncio
async def test_a_failure_passes_through_and_its_time_counts(clock: Clock) -> None:
    exchange = Exchange()

    async def work() -> None:
        await waited(clock, 5)
        clock.now += 3
        raise KeyError("x")

    with pytest.raises(KeyError):
        await exchange.timed(work())
    assert (exchange.own, exchange.client) == (3, 5)


@pytest.mark.asyncio
async def test_cancellation_reaches_the_work_and_its_cleaning_up_is_timed(clock: Clock) -> None:
    exchange = Exchange()
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            clock.now += 3
            cleaned.append(True)

    async def timed() -> None:  # Python 3.12 and later make no task of a generator
        await exchange.timed(work())

    task = asyncio.create_task(timed())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]
    assert exchange.own == 3


def test_a_scope_has_one_exchange() -> None:
    scope = {"type": "http"}
    assert exchange_of(scope) is exchange_of(scope)
    assert exchange_of({"type": "http"}) is not exchange_of(scope)


@pytest.mark.parametrize(
    ("status", "outcome", "settled", "failed"),
    [
        (200, "", "2xx", False),
        (404, "", "4xx", False),
        (503, "", "5xx", True),
        (0, "", "aborted", True),
        (200, "cut", "cut", True),
        (0, "client-left", "client-left", False),
    ],
)
def test_an_exchange_is_settled_at_its_end(
    status: int, outcome: str, settled: str, failed: bool
) -> None:
    exchange = Exchange(status=status, outcome=outcome)
    exchange.settle({"type": "http"})
    assert (exchange.outcome, exchange.failed, exchange.route) == (settled, failed, "other")
