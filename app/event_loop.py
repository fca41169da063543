"""The event loop that the servers run in: uvloop where there is one."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_YOUNG: Final = 10_000


def keep_for_good() -> None:
    """Tell the collector that what is there by now, catalogues and rules, stays to the end.

    A full collection looks at each of 100,000 objects otherwise, and every stream waits for it.
    """
    gc.collect()
    gc.freeze()
    # Of objects that are there at once, by far most die by themselves; looking at the young ones
    # after every 700 costs a relay some hundredths of its time.
    gc.set_threshold(_YOUNG)


def run_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end, as `asyncio.run` does."""
    if sys.platform == "win32":
        return asyncio.run(work)
    # uvicorn chooses a loop only where it starts it itself.
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
