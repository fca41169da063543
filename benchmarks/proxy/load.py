"""The load generator, a process of its own: `python -m benchmarks.proxy.load` with a plan on stdin.

A plan is one JSON object (`Plan`), an answer another (`Measured`). Raw asyncio protocols, one
connection each: the generator has to cost less than what it measures.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import cast
from urllib.parse import urlsplit

import uvloop

_END_OF_HEADER = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_EVENT = b"data: "


@dataclass(frozen=True)
class Plan:
    """What to do.

    Attributes:
        url: of the target.
        stream: whether to ask for an event stream.
        concurrency: connections of a closed loop, each of which asks again as soon as it can.
        rate: requests per second of an open loop instead; arrivals are random (Poisson) from
            `seed`, and a latency counts from when a request was due, not from when it was sent.
        seconds: how long to measure; a fifth as much is run before, unmeasured.
    """

    url: str
    stream: bool
    concurrency: int
    rate: float
    seconds: float
    seed: int


@dataclass(frozen=True)
class Measured:
    """What came of it, latencies in seconds.

    `requests` and `events` ended in the measured seconds; the `all_` counts have those before
    and after too, for the processor time of the whole run.
    """

    requests: int
    events: int
    failed: int
    seconds: float
    p50: float
    p99: float
    all_requests: int
    all_events: int


def request_bytes(url: str, *, stream: bool) -> bytes:
    """Give the request that is sent: a chat with seeded, masked sampling."""
    body = json.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Say something about benchmarks. " * 8}],
            "temperature": 1.0,
            "top_p": 0.95,
            "top_k": 20,
            "seed": 7,
            "max_tokens": 64,
            "logprobs": True,
            "top_logprobs": 5,
            "stream": stream,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n"
        "content-type: application/json\r\nauthorization: Bearer sk-bench\r\n"
        f"accept: */*\r\nuser-agent: bench\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """A connection that has one request in flight at most."""

    def __init__(self, generator: Generator) -> None:
        """Ask what `generator` asks."""
        self._generator = generator
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._missing: int | None = 0
        self._tail = b""
        self._answered: asyncio.Future[bool] | None = None
        self._ok = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by shape only

    async def ask(self) -> bool:
        """Send, and wait for the last byte; whether the status was 200."""
        assert self._transport is not None
        self._head, self._ok = b"", False
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(self._generator.request)
        return await self._answered

    def data_received(self, data: bytes) -> None:
        """Follow an answer to its end."""
        if self._answered is None or self._answered.done():
            return
        if not self._ok:
            self._head += data
            head, end, data = self._head.partition(_END_OF_HEADER)
            if not end:
                return
            lower = head.lower()
            if not lower.startswith(b"http/1.1 200"):
                self._finish(ok=False)
                return
            self._ok = True
            _, named, rest = lower.partition(b"\r\ncontent-length:")
            self._missing = int(rest.partition(b"\r\n")[0]) if named else None
            self._tail = b""
        if self._missing is not None:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finish(ok=True)
            return
        # An event cut in two by the network is missed; `look` shows how many there are.
        self._generator.events += data.count(_EVENT)
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if self._tail == _LAST_CHUNK:
            self._finish(ok=True)

    def connection_lost(self, _: Exception | None) -> None:
        """Fail what is in flight."""
        if self._answered is not None and not self._answered.done():
            self._finish(ok=False)
        self._transport = None

    def _finish(self, *, ok: bool) -> None:
        assert self._answered is not None
        if not ok and self._transport is not None:
            self._transport.abort()
        self._answered.set_result(ok)

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return self._transport is not None and not self._transport.is_closing()


class Generator:
    """Asks one target, and counts."""

    def __init__(self, plan: Plan) -> None:
        """Follow `plan`."""
        self._plan = plan
        self.request = request_bytes(plan.url, stream=plan.stream)
        self._idle: deque[Connection] = deque()
        self._measuring = False
        self._over = False
        self.latencies: list[float] = []
        self.requests = 0
        self.events = 0
        self.failed = 0

    async def run(self) -> Measured:
        """Warm up, measure, and let what is in flight end."""
        plan = self._plan
        asking = asyncio.create_task(self._open() if plan.rate else self._closed())
        await asyncio.sleep(plan.seconds / 5)
        events, began = self.events, time.perf_counter()
        self._measuring = True
        await asyncio.sleep(plan.seconds)
        self._measuring = False
        seconds, events = time.perf_counter() - began, self.events - events
        self._over = True
        await asking
        ordered = sorted(self.latencies)
        return Measured(
            requests=len(ordered),
            events=events,
            failed=self.failed,
            seconds=seconds,
            p50=_quantile(ordered, 0.5),
            p99=_quantile(ordered, 0.99),
            all_requests=self.requests,
            all_events=self.events,
        )

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        address = urlsplit(self._plan.url)
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self), str(address.hostname), address.port or 80
        )
        return made

    async def _ask(self, due: float) -> None:
        try:
            connection = await self._connection()
        except OSError:
            self.failed += 1
            await asyncio.sleep(0.01)
            return
        ok = await connection.ask()
        if connection.usable:
            self._idle.append(connection)
        self.requests += ok
        self.failed += not ok
        if ok and self._measuring:
            self.latencies.append(time.perf_counter() - due)

    async def _closed(self) -> None:
        async def loop() -> None:
            while not self._over:
                await self._ask(time.perf_counter())

        await asyncio.gather(*(loop() for _ in range(self._plan.concurrency)))

    async def _open(self) -> None:
        """Ask when it is due, whatever is still in flight."""
        loop = asyncio.get_running_loop()
        asking: set[asyncio.Task[None]] = set()
        first = time.perf_counter()

        def ask(due: float) -> None:
            task = loop.create_task(self._ask(due))
            asking.add(task)
            task.add_done_callback(asking.discard)

        def keep_time() -> None:
            # In a thread, because the loop's timers are only good to a millisecond.
            rng = random.Random(self._plan.seed)  # noqa: S311 - arrivals, not secrets
            due = first
            while not self._over:
                due += rng.expovariate(self._plan.rate)
                time.sleep(max(0.0, due - time.perf_counter()))
                loop.call_soon_threadsafe(ask, due)

        await asyncio.to_thread(keep_time)
        while asking:
            await asyncio.wait(asking)


def _quantile(ordered: list[float], share: float) -> float:
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def run(plan: Plan) -> Measured:
    """Measure."""
    return await Generator(plan).run()


def main() -> None:
    """Read plans line by line and answer each."""
    for line in sys.stdin:
        measured = uvloop.run(run(Plan(**json.loads(line))))
        sys.stdout.write(json.dumps(asdict(measured)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
