"""The process in which exchanges are replayed.

Decoding one long response holds Python's interpreter lock for tens of milliseconds, which every
stream relayed meanwhile would feel; so it is done in another process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from app.relay.inline.outcome import Exchange, Outcome, replay_exchange


class Worker(Protocol):
    """Replays one exchange after another; called from one thread."""

    def replay(self, exchange: Exchange) -> Outcome:
        """Replay it, taking as long as it takes."""

    def close(self) -> None:
        """End; no call follows."""


class ProcessWorker:
    """A worker in a process of its own, started at the first exchange."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._pool: ProcessPoolExecutor | None = None

    def replay(self, exchange: Exchange) -> Outcome:
        """Replay it there; if that process has died, the next call starts another."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                max_workers=1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=belong_to_the_service,
            )
        try:
            return self._pool.submit(replay_exchange, exchange).result()
        except BrokenProcessPool:
            self.close()
            return Outcome("failed", {}, "worker-died", "the replaying process ended abruptly")

    def close(self) -> None:
        """End the process, after what it is doing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def belong_to_the_service() -> None:
    """End when the service does, however it does, and at no other time.

    A terminal's interrupt reaches the whole process group, but it is the service that ends this
    process; and a service that is killed cannot.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
