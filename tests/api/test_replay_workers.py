"""Replays in processes of their own: what comes back, and what happens when one dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading

import pytest

from app.api.replay_workers import ProcessWorkers, WorkerDied, answer_lines
from app.batch import Line
from app.main import create_app
from app.settings import Settings
from tests.api.test_replay import case
from tests.support import client_of

LINE = json.dumps({"id": "one", **case()}).encode()


def _end_abruptly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_lines_are_answered_and_counted() -> None:
    lines = [Line(1, LINE), Line(2, b"{"), Line(3, b"x" * 50, too_long=True)]
    answered = answer_lines(lines, limit=10, rows=False)
    first, second, third = map(json.loads, answered.text.splitlines())
    assert (first["id"], first["verdict"]) == ("one", "consistent")
    assert (second["line"], second["error"]["status"]) == (2, 400)
    assert (third["line"], third["error"]["status"]) == (3, 413)
    (report,) = answered.reports
    assert report.verdict == "consistent"
    assert report.rows["mismatch"] == 0
    assert len(answered.seconds) == 3
    assert answered.crashes == ()


@pytest.mark.asyncio
async def test_the_service_replays_in_other_processes_and_survives_their_end() -> None:
    app = create_app(Settings(replay_workers=1))
    workers = app.state.gates.replay_workers
    assert isinstance(workers, ProcessWorkers)
    async with client_of(app) as client:
        posted = await client.post("/replay/batch", content=LINE + b"\n{\n")
        elsewhere = await workers.run(os.getpid)
        with pytest.raises(WorkerDied):
            await workers.run(_end_abruptly)
        # A pool that is dropped before its thread has ended can keep a process from ending.
        assert not any("ExecutorManager" in type(t).__name__ for t in threading.enumerate())
        again, cancelled = await workers.run(os.getpid), asyncio.ensure_future(workers.run(abs, -1))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        metrics = (await client.get("/metrics")).text
    report, failed = map(json.loads, posted.text.splitlines())
    assert report["verdict"] == "consistent"
    assert failed["error"]["status"] == 400
    assert len({os.getpid(), elsewhere, again}) == 3
    assert 'vllm_admission_replay_rows_total{outcome="exact"}' in metrics
    assert 'vllm_admission_duration_seconds_count{gate="replay"} 2.0' in metrics
