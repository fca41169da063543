"""The process in which heavy bodies are judged.

Decoding a million token ids holds Python's interpreter lock for tens of milliseconds, which
every stream relayed meanwhile would feel.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import structlog

from app.relay.inline.worker import belong_to_the_service
from app.request_rules.checker import RequestChecker
from app.request_rules.counting import Counts
from app.request_rules.examination import Examination
from app.request_rules.policy import Policy
from app.request_rules.served import Served

_log = structlog.get_logger("vllm_admission.relay")
_checker: RequestChecker | None = None
"""In that process."""


class ExaminationProcess:
    """Judges one body after another. The process starts at the first; `aclose` ends it."""

    def __init__(self, served: Served, policy: Policy, *, inject_seeds: bool) -> None:
        """Judge as a `RequestChecker` of these does."""
        self._made_of = (served, policy, inject_seeds)
        self._pool: ProcessPoolExecutor | None = None
        # Handing a body over takes milliseconds, and starting the process more.
        self._thread: ThreadPoolExecutor | None = None

    async def judge(self, route: str, body: bytes, counts: Counts) -> Examination | None:
        """See `Apart.judge`; if the process has died, the next call starts another."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="examination")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._judge, route, body, dict(counts))

    def _judge(self, route: str, body: bytes, counts: Counts) -> Examination | None:
        try:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    max_workers=1,
                    mp_context=multiprocessing.get_context("spawn"),
                    initializer=_prepare,
                    initargs=self._made_of,
                )
            return self._pool.submit(_examine, route, body, counts).result()
        except (BrokenProcessPool, OSError) as error:
            _log.warning("heavy body judged in place", reason=repr(error))
            self._end()
            return None

    def _end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    async def aclose(self) -> None:
        """End the process, after what it is doing; a later call of `judge` starts another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(self._end_after, thread)

    def _end_after(self, thread: ThreadPoolExecutor) -> None:
        thread.shutdown()
        self._end()


def _prepare(served: Served, policy: Policy, inject_seeds: bool) -> None:
    global _checker
    belong_to_the_service()
    _checker = RequestChecker(served, policy=policy, inject_seeds=inject_seeds)


def _examine(route: str, body: bytes, counts: Counts) -> Examination:
    if _checker is None:
        raise RuntimeError("this process was not prepared")
    return _checker.judge(route, body, counts)
