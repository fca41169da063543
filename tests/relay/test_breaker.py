"""The circuit breaker alone, on a clock that the test turns."""

from __future__ import annotations

from app.relay.breaker import Breaker, BreakerLimits, BreakerState


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _state(breaker: Breaker) -> BreakerState:
    return breaker.state


def _opened() -> tuple[Breaker, _Clock]:
    clock = _Clock()
    breaker = Breaker(BreakerLimits(failures=2, open_seconds=10, successes=2), clock)
    for _ in range(2):
        assert breaker.admits()
        breaker.failed()
    return breaker, clock


def test_only_failures_in_a_row_open_it() -> None:
    breaker = Breaker(BreakerLimits(failures=2))
    for _ in range(5):
        breaker.failed()
        breaker.succeeded()
    assert _state(breaker) is BreakerState.CLOSED
    breaker.failed()
    breaker.failed()
    assert _state(breaker) is BreakerState.OPEN


def test_open_admits_nobody_until_its_time_is_over_and_then_one() -> None:
    breaker, clock = _opened()
    assert not breaker.admits()
    assert breaker.retry_after == 10
    clock.now += 10
    assert _state(breaker) is BreakerState.HALF_OPEN
    assert [breaker.admits() for _ in range(3)] == [True, False, False]


def test_it_takes_several_answers_to_close_and_one_failure_to_open_again() -> None:
    breaker, clock = _opened()
    clock.now += 10
    assert breaker.admits()
    breaker.succeeded()
    assert _state(breaker) is BreakerState.HALF_OPEN
    assert breaker.admits()
    breaker.failed()
    assert _state(breaker) is BreakerState.OPEN
    clock.now += 10
    for _ in range(2):
        assert breaker.admits()
        breaker.succeeded()
    assert _state(breaker) is BreakerState.CLOSED
    breaker.failed()
    assert _state(breaker) is BreakerState.CLOSED


def test_a_client_that_left_decides_nothing_and_lets_the_next_try() -> None:
    breaker, clock = _opened()
    clock.now += 10
    assert breaker.admits()
    breaker.undecided()
    assert breaker.admits()


def test_late_answers_of_older_requests_count_towards_closing() -> None:
    breaker, _ = _opened()
    breaker.succeeded()
    breaker.succeeded()
    assert _state(breaker) is BreakerState.CLOSED
