"""The replaying process, for real."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from app.relay.inline.outcome import Exchange
from app.relay.inline.worker import ProcessWorker
from tests.relay.inline.test_outcome import FACTS, REQUEST, RESPONSE

EXCHANGE = Exchange(FACTS, REQUEST, RESPONSE, streamed=False)


@pytest.fixture
def worker() -> Iterator[ProcessWorker]:
    worker = ProcessWorker()
    yield worker
    worker.close()
    assert multiprocessing.active_children() == []


def test_exchanges_are_replayed_in_another_process_that_a_death_only_delays(
    worker: ProcessWorker,
) -> None:
    assert worker.replay(EXCHANGE).verdict == "consistent"
    (child,) = multiprocessing.active_children()
    child.kill()
    child.join()
    assert worker.replay(EXCHANGE).verdict == "failed"
    assert worker.replay(EXCHANGE).verdict == "consistent"


def test_closing_twice_is_fine(worker: ProcessWorker) -> None:
    worker.close()
