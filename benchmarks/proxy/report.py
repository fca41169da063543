"""The tables of docs/proxy_benchmark.md, from the cells of one run."""

from __future__ import annotations

import math
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.proxy.load import Measured


@dataclass(frozen=True)
class Load:
    """A closed loop of `concurrency` connections, or an open one of `rate` requests per second."""

    stream: bool
    concurrency: int = 0
    rate: float = 0.0


@dataclass(frozen=True)
class Cell:
    """What one target did under one load, once.

    Attributes:
        cpu: processor seconds of the target during the run, its warm-up included.
        size: resident bytes at its end.
    """

    target: str
    load: Load
    measured: Measured
    cpu: float
    size: int

    def __str__(self) -> str:
        kind = "stream" if self.load.stream else "unary"
        at = f"c={self.load.concurrency}" if self.load.concurrency else f"{self.load.rate:.0f}/s"
        return (
            f"{self.target:16} {kind:6} {at:6} {self.requests_per_second:8.0f} req/s "
            f"{self.events_per_second:8.0f} events/s  p50 {self.measured.p50 * 1e3:8.2f} ms  "
            f"p99 {self.measured.p99 * 1e3:8.2f} ms  {self.cpu_per_unit:7.1f} us  "
            f"{self.size / 2**20:6.1f} MiB  failed {self.measured.failed}"
        )

    @property
    def requests_per_second(self) -> float:
        """Requests that ended in the measured time."""
        return self.measured.requests / self.measured.seconds

    @property
    def events_per_second(self) -> float:
        """Events that arrived in the measured time."""
        return self.measured.events / self.measured.seconds

    @property
    def cpu_per_unit(self) -> float:
        """Processor time in microseconds, of a request or (in streams) of an event."""
        units = self.measured.all_events if self.load.stream else self.measured.all_requests
        return self.cpu / max(1, units) * 1e6


@dataclass
class Results:
    """All cells, and the targets that could not be had, with the reason."""

    repeats: int
    seconds: float
    cells: list[Cell] = field(default_factory=list)
    out: dict[str, str] = field(default_factory=dict)

    @property
    def targets(self) -> list[str]:
        """Names in the order of measuring."""
        return list(dict.fromkeys(cell.target for cell in self.cells))

    def of(self, target: str, load: Load) -> list[Cell]:
        """Give the repeats of a cell."""
        return [c for c in self.cells if (c.target, c.load) == (target, load)]

    def loads(self, *, stream: bool) -> list[Load]:
        """Give the closed loops that were run."""
        found = dict.fromkeys(c.load for c in self.cells)
        return [load for load in found if load.stream == stream and load.concurrency]

    def median(self, target: str, load: Load, value: Callable[[Cell], float]) -> float | None:
        """Give the median of a cell's repeats, None if it was not run."""
        values = [v for v in map(value, self.of(target, load)) if not math.isnan(v)]
        return statistics.median(values) if values else None

    def added(
        self, target: str, load: Load, value: Callable[[Cell], float]
    ) -> tuple[float, float, float] | None:
        """Give median, least and most of what a target adds to the direct way, by repeat."""
        pairs = zip(self.of(target, load), self.of("direct", load), strict=False)
        differences = (value(cell) - value(direct) for cell, direct in pairs)
        added = [d for d in differences if not math.isnan(d)]
        return (statistics.median(added), min(added), max(added)) if added else None


def markdown(results: Results) -> str:
    """Render the page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield "# What the proxy costs"
    yield ""
    yield (
        "Written by `python benchmarks/proxy_bench.py --write`; all numbers are of one run on one\n"
        "machine, so that only their ratios mean something."
    )
    yield from ("", f"Commit {_commit()}. Machine: {_machine()}.", "")
    yield from _method(results)
    for name, reason in results.out.items():
        yield from ("", f"**{name} was not measured:** {' '.join(reason.split())}")
    yield from ("", "## Goals", "")
    yield from _goals(results)
    yield ""
    yield _LIMITS
    yield from ("", "## 200 requests per second, unary, open loop", "")
    yield from _table(
        results,
        [Load(stream=False, rate=200.0)],
        ("added p50, ms", "added p99, ms", "CPU per request, µs", "memory, MiB"),
        (_added(_p50), _added(_p99), _plain(_cpu, 0), _plain(_memory, 0)),
    )
    for stream, unit in ((False, "request"), (True, "event")):
        yield from ("", f"## {'Streams' if stream else 'Unary'}, closed loop", "")
        rate = _plain(_events if stream else _requests, 0)
        yield from _table(
            results,
            results.loads(stream=stream),
            (
                f"{unit}s/s",
                "added p50, ms",
                "added p99, ms",
                f"CPU per {unit}, µs",
                "memory, MiB",
            ),
            (rate, _added(_p50), _added(_p99), _plain(_cpu, 1), _plain(_memory, 0)),
        )


_LIMITS = """\
What limits it, where a goal is missed: a saturated proxy has one processor, so requests/s are
what its column "CPU per request" leaves. Ten times the plain proxy is a tenth of that proxy's
processor time, and ours is interpreted: aiohttp's client, uvicorn's parsing and sending, the
request rules (which decode the body once), the access line and what holds them together each
take a part, and none of them most (`py-spy record` on a saturated process shows it). At one
connection the plain proxy does not yet suffer from its connection pool, which is what the goal
was measured against. More workers (`VLLM_ADMISSION_WORKERS`) or replicas are the way to more than
one processor's worth.\
"""
_METHOD = """\
The backend is a raw ASGI application (`benchmarks/proxy/upstream.py`) under uvicorn with uvloop
and httptools: a unary answer is 1 KB of JSON, a stream has {events} events of 150 bytes, each
sent by itself with a turn of the event loop in between. The load generator
(`benchmarks/proxy/load.py`) is a process of its own and speaks raw HTTP over keep-alive
connections. Every cell has a fresh backend, a fresh proxy and a fresh generator, {seconds:g} s
are measured after a warm-up of a fifth of that, and there are {repeats} repeats; a row is the
median, and in brackets are the least and the most of them. The proxy has a processor to itself
(one process, one CPU for all), backend and generator have the others. "Added" is a proxy's
quantile less that of the direct way in the same repeat. The open loop has random arrivals from
a fixed seed, and a latency counts from when the request was due (no coordinated omission). CPU
is the user and system time of the proxy's processes, memory their PSS; for "direct" they are
the backend's. In closed loops latency is what a saturated proxy makes of it; the open loop is
what a client of a proxy with room sees. Request rules: all, against a configuration with
sampling masks; access log on."""


def _method(results: Results) -> Iterator[str]:
    from benchmarks.proxy.upstream import EVENTS

    yield _METHOD.format(events=EVENTS, seconds=results.seconds, repeats=results.repeats)


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    cores = Path("/proc/cpuinfo").read_text().count("processor\t")
    load = Path("/proc/loadavg").read_text().split()[0]
    return f"{model}, {cores} CPUs, Python {platform.python_version()}, load at the end {load}"


Column = Callable[[Results, str, Load], str]


def _table(
    results: Results, loads: list[Load], titles: tuple[str, ...], columns: tuple[Column, ...]
) -> Iterator[str]:
    several = len(loads) > 1
    head = ("c", "target", *titles) if several else ("target", *titles)
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for load in loads:
        for target in results.targets:
            if results.of(target, load):
                row = [column(results, target, load) for column in columns]
                first = [str(load.concurrency)] if several else []
                yield f"| {' | '.join([*first, target, *row])} |"


def _plain(value: Callable[[Cell], float], digits: int) -> Column:
    def column(results: Results, target: str, load: Load) -> str:
        median = results.median(target, load, value)
        return "" if median is None else f"{median:,.{digits}f}"

    return column


def _added(value: Callable[[Cell], float]) -> Column:
    def column(results: Results, target: str, load: Load) -> str:
        if target == "direct":
            median = results.median(target, load, value)
            return "" if median is None else f"(direct: {median:.2f})"
        found = results.added(target, load, value)
        return "" if found is None else f"{found[0]:.2f} [{found[1]:.2f} … {found[2]:.2f}]"

    return column


def _p50(cell: Cell) -> float:
    return cell.measured.p50 * 1e3


def _p99(cell: Cell) -> float:
    return cell.measured.p99 * 1e3


def _cpu(cell: Cell) -> float:
    return cell.cpu_per_unit


def _memory(cell: Cell) -> float:
    return cell.size / 2**20


def _requests(cell: Cell) -> float:
    return cell.requests_per_second


def _events(cell: Cell) -> float:
    return cell.events_per_second


def _goals(results: Results) -> Iterator[str]:
    """Say for each goal what was measured."""
    yield "| goal | measured |"
    yield "|---|---|"
    for other, times in (("LiteLLM", 5), ("FastAPI + httpx", 10)):
        ratios = list(_ratios(results, other, _requests, stream=False))
        yield f"| requests/s at least {times} times {other} | {_said(ratios)} |"
    ratios = list(_ratios(results, "vllm-router", _events, stream=True))
    yield f"| streamed events/s no lower than vllm-router | {_said(ratios)} |"
    cpu = list(_ratios(results, "vllm-router", lambda cell: 1 / _cpu(cell), stream=True))
    yield f"| the same by processor time per event | {_said(cpu)} |"
    load = Load(stream=False, rate=200.0)
    ours, routers = (results.added(t, load, _p50) for t in ("vllm-admission", "vllm-router"))
    over = "not measured" if ours is None or routers is None else f"{ours[0] - routers[0]:+.2f} ms"
    yield f"| added p50 at 200 requests/s at most 1 ms over vllm-router | {over} |"


def _ratios(
    results: Results, other: str, value: Callable[[Cell], float], *, stream: bool
) -> Iterator[str]:
    for load in results.loads(stream=stream):
        ours = results.median("vllm-admission", load, value)
        theirs = results.median(other, load, value)
        if ours is not None and theirs:
            yield f"c={load.concurrency}: {ours / theirs:.1f} times"


def _said(ratios: list[str]) -> str:
    return ", ".join(ratios) or "not measured"
