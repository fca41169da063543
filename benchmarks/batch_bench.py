"""What a long batch does to the service: its memory, and how alive its other streams stay.

    python benchmarks/batch_bench.py [--rollouts 10000] [--tokens 256]

The service runs as its own process; rollouts are sent as one stream after another, and /livez is
asked all the while. Memory is what /proc says of the service (Linux only).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.replay_bench import make_case

ROOT = Path(__file__).resolve().parent.parent
PARTS = 4


class Service:
    """`vllm-admission serve` on a free port."""

    def __init__(self) -> None:
        """Start it and wait until it listens."""
        command = [sys.executable, "-c", "from app.cli import main; main()", "serve", "--port", "0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stderr is not None
        self.url = json.loads(self._process.stderr.readline())["url"]

    def megabytes(self, name: str) -> float:
        """Resident memory now (VmRSS) or at most since the start (VmHWM)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()


async def post_batch(url: str, line: bytes, count: int) -> tuple[int, list[float]]:
    """Send a line `count` times; gives the answers, and the seconds of each /livez meanwhile."""
    waits: list[float] = []
    done = asyncio.Event()

    async def watch(session: aiohttp.ClientSession) -> None:
        while not done.is_set():
            start = time.perf_counter()
            async with session.get(f"{url}/livez") as response:
                await response.read()
            waits.append(time.perf_counter() - start)
            await asyncio.sleep(0.02)

    async def body() -> AsyncIterator[bytes]:
        for number in range(count):
            yield b'{"id":%d,' % number + line[1:] + b"\n"

    answers = 0
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        watching = asyncio.create_task(watch(session))
        async with session.post(f"{url}/replay/batch", data=body()) as response:
            async for answer in response.content:
                answers += b'"verdict":"consistent"' in answer
        done.set()
        await watching
    return answers, waits


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    line = make_case("0.32.0", arguments.tokens, 8, 8)
    count = arguments.rollouts // PARTS
    service = Service()
    try:
        asyncio.run(post_batch(service.url, line, 20))
        resident, waits = [service.megabytes("VmRSS")], list[float]()
        start = time.perf_counter()
        for _ in range(PARTS):
            answers, waited = asyncio.run(post_batch(service.url, line, count))
            assert answers == count
            waits += waited
            resident.append(service.megabytes("VmRSS"))
        seconds = time.perf_counter() - start
        most = service.megabytes("VmHWM")
    finally:
        service.stop()
    total = arguments.rollouts * len(line) / 1e6
    print(
        f"{arguments.rollouts} rollouts of {arguments.tokens} tokens, {len(line) / 1e3:.0f} kB each"
    )
    print(f"  {total / seconds:.1f} MB/s, {arguments.rollouts / seconds:.0f} rollouts/s")
    print(f"  resident after a warm-up and each quarter: {[round(m) for m in resident]} MB")
    print(f"  most at any time: {most:.0f} MB")
    median, late, latest = (np.quantile(waits, share) * 1e3 for share in (0.5, 0.99, 1.0))
    print(f"  /livez: median {median:.0f} ms, p99 {late:.0f} ms, slowest {latest:.0f} ms")


if __name__ == "__main__":
    main()
