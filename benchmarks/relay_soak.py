"""Many requests with random faults through the relay: every end is honest, and memory is flat.

    python benchmarks/relay_soak.py [--requests 20000] [--concurrency 64] [--leaving 0.1]

One process holds the clients, the relay on uvicorn with its own protocol, and a backend that
resets, stalls, trickles, garbles and lies about its length (`tests/relay/chaos.py`); a second
backend is never there. A share of the clients leaves at a random moment. Resident memory is
printed at intervals. Exit code 1 if any client got something else than an honest end, if a task,
a connection or a file is left over, or if memory grew after the first quarter by more than
`--tolerance` MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structlog

from tests.relay.chaos import Held, chaos, held_again, resident_bytes

_STEPS = 20
_IDLE_TIMEOUT = 3.0
_MIB = 2**20


async def soak(requests: int, concurrency: int, leaving: float, tolerance: float) -> bool:
    """Run it; whether all was well."""
    step = max(1, requests // _STEPS)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
    async with AsyncExitStack() as stack:
        scene = await chaos(stack, dead, idle_timeout=_IDLE_TIMEOUT)
        await scene.run(step, concurrency, leaving)
        await scene.settle()
        scene.ends.clear()
        held = Held.now()
        sizes = []
        began = time.perf_counter()
        print(f"{'requests':>9} {'seconds':>8} {'RSS MiB':>8}")
        for number in range(step, requests + 1, step):
            await scene.run(step, concurrency, leaving)
            sizes.append(resident_bytes() / _MIB)
            print(f"{number:>9} {time.perf_counter() - began:>8.1f} {sizes[-1]:>8.1f}", flush=True)
        await scene.settle()
        left = await held_again(held)
    grown = max(sizes[len(sizes) // 4 :]) - sizes[len(sizes) // 4 - 1]
    for name, number in sorted(scene.ends.items()):
        print(f"{number:>9} {name}")
    print(f"before: {held}; after: {left}; growth after the first quarter: {grown:.1f} MiB")
    for dishonest in scene.dishonest[:5]:
        print("dishonest:", dishonest)
    return (
        not scene.dishonest
        and scene.ends.total() == len(sizes) * step
        and left.tasks <= held.tasks
        and left.files <= held.files
        and grown <= tolerance
    )


def main() -> None:
    """Run the soak with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--leaving", type=float, default=0.1)
    parser.add_argument("--tolerance", type=float, default=8.0, help="MiB")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # uvicorn tells of every answer that is cut
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    well = asyncio.run(
        soak(options.requests, options.concurrency, options.leaving, options.tolerance)
    )
    print("well" if well else "NOT WELL")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
