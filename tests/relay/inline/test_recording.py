from __future__ import annotations

from app.relay.inline.outcome import Skipped
from app.relay.inline.recording import Budget, Recording


def test_what_was_kept_is_given_back_and_returned() -> None:
    budget = Budget(10)
    recording = Recording(budget, b"req")
    recording.add(b"ab")
    recording.add(b"cd")
    assert (recording.response(), budget.used) == (b"abcd", 7)
    recording.let_go()
    assert budget.used == 0


def test_bytes_return_only_when_the_last_user_lets_go() -> None:
    budget = Budget(10)
    recording = Recording(budget, b"req")
    recording.share()
    recording.let_go()
    assert budget.used == 3
    recording.let_go()
    assert budget.used == 0


def test_an_exchange_larger_than_the_budget_is_too_large() -> None:
    budget = Budget(10)
    recording = Recording(budget, b"request")
    recording.add(b"1234")
    assert recording.refused is Skipped.TOO_LARGE
    assert Recording(Budget(3), b"request").refused is Skipped.TOO_LARGE


def test_one_that_would_fit_alone_meets_a_full_buffer() -> None:
    budget = Budget(10)
    first = Recording(budget, b"12345678")
    second = Recording(budget, b"abc")
    assert (first.refused, second.refused) == (None, Skipped.BUFFER_FULL)
    second.add(b"more")
    assert second.response() == b""
    second.let_go()
    first.let_go()
    assert budget.used == 0
