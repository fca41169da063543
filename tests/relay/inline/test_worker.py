"""The replaying process, for real."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
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


def test_a_service_that_is_killed_leaves_no_process_behind() -> None:
    code = (
        "import multiprocessing, os, signal;"
        "from tests.relay.inline.test_worker import EXCHANGE, ProcessWorker;"
        "worker = ProcessWorker();"
        "worker.replay(EXCHANGE);"
        "(child,) = multiprocessing.active_children();"
        "print(child.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    child = int(done.stdout)
    deadline = time.monotonic() + 10
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip().startswith("Z")
