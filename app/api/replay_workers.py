"""Processes that replay, beside the event loop's.

A replay holds Python's interpreter lock for as long as it takes, in a thread too: streams that are
relayed and probes that ask for /livez would wait for it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from time import perf_counter
from typing import ParamSpec, Protocol, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from app.batch import Batch, Line
from app.errors import AdmissionError
from app.relay.inline.worker import belong_to_the_service
from app.replaying import Replayed, line_handler

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WorkerDied(AdmissionError):
    """A process that replayed ended abruptly, as when memory is short."""

    slug = "worker-died"
    title = "The replaying process ended"


class ReplayWorkers(Protocol):
    """Whoever runs replays, several at a time."""

    async def run(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Give what `work` gives; where it is begun, it is waited for."""

    async def aclose(self) -> None:
        """End, after what is being done."""


class ProcessWorkers:
    """At most `number` processes, started when they are first needed."""

    def __init__(self, number: int) -> None:
        """Start nothing yet."""
        self._number = number
        self._limiter = CapacityLimiter(number)
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Run a function of a module, with arguments that can be pickled.

        Raises:
            WorkerDied: its process did; the next call starts another.
        """
        async with self._limiter:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    self._number,
                    multiprocessing.get_context("spawn"),
                    initializer=belong_to_the_service,
                )
            pool = self._pool
            try:
                # A scope that is cancelled waits: the process goes on, and its place is taken.
                with CancelScope(shield=True):
                    result = await asyncio.wrap_future(pool.submit(work, *args, **options))
            except BrokenProcessPool:
                if self._pool is pool:
                    self._pool = None
                    # Its thread can block for good, and the end of this process with it, if the
                    # pool is gone before (CPython 3.12 and 3.13).
                    with CancelScope(shield=True):
                        await to_thread.run_sync(pool.shutdown)
                raise WorkerDied("the replaying process ended abruptly") from None
            return result

    async def aclose(self) -> None:
        """End the processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await to_thread.run_sync(pool.shutdown)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the metrics ask of a report."""

    vllm_version: str
    verdict: str
    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class Answered:
    """Some lines of a batch, answered.

    Attributes:
        text: the answers, in order.
        reports: to be counted.
        seconds: that each line took.
        crashes: line numbers and tracebacks, without the values that were processed.
    """

    text: bytes
    reports: tuple[Counted, ...]
    seconds: tuple[float, ...]
    crashes: tuple[tuple[int, str], ...]


def answer_lines(lines: Sequence[Line], *, limit: int, rows: bool) -> Answered:
    """Answer lines of a replay batch; what runs in the processes.

    Args:
        lines: to answer.
        limit: of a line's length, for the message about one that is longer.
        rows: write each case's rows after its report.
    """
    reports: list[Counted] = []
    crashes: list[tuple[int, str]] = []

    def seen(_: int, replayed: Replayed) -> None:
        report = replayed.report
        counts = {name: int(report.rows[name]) for name in ("exact", "mismatch", "undecidable")}
        reports.append(Counted(report.vllm_version, report.verdict.value, counts))

    def crashed(number: int, error: Exception) -> None:
        crashes.append((number, "".join(traceback.format_exception(error))))

    batch = Batch(line_handler(rows=rows, seen=seen), limit=limit, crashed=crashed)
    texts, seconds = [], []
    for line in lines:
        began = perf_counter()
        texts.append(batch.answer(line).text)
        seconds.append(perf_counter() - began)
    return Answered(b"".join(texts), tuple(reports), tuple(seconds), tuple(crashes))
