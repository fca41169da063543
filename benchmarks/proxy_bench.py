"""What a proxy in front of vLLM costs: ours, vllm-router, nginx, LiteLLM, and the plain one.

    python benchmarks/proxy_bench.py [--quick] [--targets NAME,NAME] [--write]

Everything is on this machine's loopback. A cell (target, load, repeat) has a fresh process, and
direct answers of the backend in the same repeat are what it is compared with. vllm-router and
LiteLLM are installed from PyPI, each into an environment of its own under the user's cache, and
nginx is used where it is installed. `--write` puts the tables into docs/proxy_benchmark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.proxy.load import Measured, Plan
from benchmarks.proxy.report import Cell, Load, Results, markdown
from benchmarks.proxy.targets import (
    TARGETS,
    Launch,
    Target,
    Unavailable,
    process,
    usage,
    wait_until_right,
)

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "proxy_benchmark.md"
_RATE = 200.0
_SEED = 20_261_201
_CONCURRENCY = (1, 16, 64, 128)


# What a target is loaded with: the open loop, then closed ones.
LOADS = (
    Load(stream=False, rate=_RATE),
    *(Load(stream=False, concurrency=concurrency) for concurrency in _CONCURRENCY),
    *(Load(stream=True, concurrency=concurrency) for concurrency in _CONCURRENCY),
)


class Bench:
    """Runs cells."""

    def __init__(self, scratch: Path, seconds: float) -> None:
        """Measure for `seconds` in each cell."""
        self._scratch = scratch
        self._seconds = seconds
        cpus = sorted(os.sched_getaffinity(0))
        # The proxy has a processor to itself; backend and generator share where there are two.
        self.proxy_cpu = {cpus[0]}
        self._backend_cpu = {cpus[1 % len(cpus)]}
        self._load_cpu = {cpus[2 % len(cpus)]} if len(cpus) > 2 else self._backend_cpu

    def cell(self, target: Target, load: Load, port: int) -> Cell:
        """Measure one cell, everything started for it."""
        backend = f"http://127.0.0.1:{port}"
        serve = Launch([sys.executable, "-m", "benchmarks.proxy.upstream", str(port)])
        log = self._scratch / "backend.log"
        with process(serve, self._backend_cpu, log) as upstream:
            wait_until_right(backend, upstream, 30, log)
            if target.launch is None:
                return self._measured(target, load, backend, upstream.pid)
            log = self._scratch / "target.log"
            launch = target.launch(self._scratch, port + 1, backend)
            with process(launch, self.proxy_cpu, log) as proxy:
                url = f"http://127.0.0.1:{port + 1}"
                wait_until_right(url, proxy, target.startup, log)
                return self._measured(target, load, url, proxy.pid)

    def _measured(self, target: Target, load: Load, url: str, pid: int) -> Cell:
        plan = Plan(url, load.stream, load.concurrency, load.rate, self._seconds, _SEED)
        before, _ = usage(pid)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.proxy.load"],
            input=json.dumps(asdict(plan)) + "\n",
            capture_output=True,
            text=True,
            check=True,
            cwd=_ROOT,
            preexec_fn=lambda: os.sched_setaffinity(0, self._load_cpu),
        )
        after, size = usage(pid)
        return Cell(target.name, load, Measured(**json.loads(done.stdout)), after - before, size)


def main() -> None:
    """Run the matrix and print it as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repeat, to see it work")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="measured in each cell")
    parser.add_argument("--targets", default="", help="names, separated by commas; default all")
    parser.add_argument("--port", type=int, default=18_100, help="this one and the two after it")
    parser.add_argument("--write", action="store_true", help=f"write {_PAGE.name}")
    options = parser.parse_args()
    names = {name.strip() for name in options.targets.split(",") if name.strip()}
    repeats, seconds = (1, 0.5) if options.quick else (options.repeats, options.seconds)
    results = Results(repeats=repeats, seconds=seconds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="proxy-bench-") as scratch:
        bench = Bench(Path(scratch), seconds)
        for repeat in range(repeats):
            for target in TARGETS:
                if (names and target.name not in {*names, "direct"}) or target.name in results.out:
                    continue
                for load in LOADS:
                    try:
                        cell = bench.cell(target, load, options.port)
                    except Unavailable as reason:
                        results.out[target.name] = str(reason)
                        break
                    results.cells.append(cell)
                    sys.stderr.write(f"{time.monotonic() - began:5.0f} s  {repeat + 1}  {cell}\n")
    text = markdown(results)
    sys.stdout.write(text)
    if options.write:
        _PAGE.write_text(text)


if __name__ == "__main__":
    main()
