"""Several processes that serve as one: started, watched, replaced when they die, ended together.

Each worker listens on a socket of its own at the same address, among which the kernel spreads
new connections. The sockets belong to the supervisor: while a worker is being replaced its
connections wait instead of being refused.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from app.inputs import UNUSABLE
from app.telemetry.registry import forget_gauges, metrics_directory

_log = structlog.get_logger("vllm_admission.supervisor")

# A worker that ends so soon was never of use; so many in a row, and it is no accident.
_SHORT_LIFE_SECONDS: Final = 5.0
_MOST_SHORT_LIVES: Final = 5
_LONGEST_PAUSE_SECONDS: Final = 5.0


class Supervisor:
    """Keeps one worker for each listener. Use it once, by `run()`."""

    def __init__(self, listeners: Sequence[socket.socket], stop_seconds: float) -> None:
        """Take on `listeners`; workers that were told to end are killed after `stop_seconds`."""
        self._listeners = listeners
        self._stop_seconds = stop_seconds
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Serve until a signal; gives the exit code.

        A second signal ends the workers at once. A worker that cannot use its settings, and one
        that dies again and again as soon as it is started, ends all.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        with metrics_directory() as directory:
            async with asyncio.TaskGroup() as group:
                for worker, listener in enumerate(self._listeners):
                    group.create_task(self._keep(worker, listener, directory))
        return self._exit_code

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._killing.set()
        self._stopping.set()

    async def _keep(self, worker: int, listener: socket.socket, directory: Path) -> None:
        """Have a worker running until all are to end."""
        short_lives = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            process = await _start(worker, listener, directory)
            code = await self._end_of(process)
            forget_gauges(worker, directory)
            if self._stopping.is_set():
                return
            short = time.monotonic() - began < _SHORT_LIFE_SECONDS
            short_lives = short_lives + 1 if short else 0
            _log.error("worker ended", worker=worker, pid=process.pid, exit_code=code)
            if code == UNUSABLE or short_lives >= _MOST_SHORT_LIVES:
                self._exit_code = code if code > 0 else 1
                self._stopping.set()
                return
            await self._pause(short_lives)

    async def _pause(self, short_lives: int) -> None:
        seconds = min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**short_lives) if short_lives > 1 else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _end_of(self, process: asyncio.subprocess.Process) -> int:
        """Wait for a worker, and end it when all are to end."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        killing = asyncio.create_task(self._killing.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                process.terminate()
                await asyncio.wait(
                    {ended, killing},
                    timeout=self._stop_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not ended.done():
                _log.error("worker killed", pid=process.pid)
                process.kill()
            return await ended
        finally:
            stopping.cancel()
            killing.cancel()


async def _start(
    worker: int, listener: socket.socket, directory: Path
) -> asyncio.subprocess.Process:
    """Start a worker. The pipe to its input tells it, by its end, that we are gone.

    It leads a session of its own, so that the terminal's Ctrl-C reaches us alone.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "app.worker", str(worker), str(listener.fileno()), str(directory)),
        stdin=asyncio.subprocess.PIPE,
        pass_fds=(listener.fileno(),),
        start_new_session=True,
    )
    _log.info("worker started", worker=worker, pid=process.pid)
    return process
