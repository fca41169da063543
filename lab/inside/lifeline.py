"""Ends a server whose parent is gone, so that none is left behind by a killed test run."""

from __future__ import annotations

import os
import signal
import threading
import time


def install(parent: int) -> None:
    """Watch the parent from the process it started; its own children end with it."""
    if os.getppid() == parent:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
