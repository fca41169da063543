"""Many requests, each with its own fate, and a count of how each ended.

What becomes of a request is written in its path, so that the backend, which does it, and the
client, which knows what is honest then, agree without talking to each other.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from app.relay.breaker import BreakerLimits
from app.relay.capacity import CapacityLimits
from app.relay.client import BodyLimits
from app.relay.fleet import Fleet, RetryLimits
from app.relay.metrics import FleetMetrics
from app.relay.relay import Pace
from app.relay.upstream import Backend
from tests.relay.faulty import FaultyBackend, Peer, Seen, faulty_backend
from tests.relay.harness import Answer, Gate, client_of, eventually, gate_of

EVENTS = 8
# Well above what a busy machine may keep the event loop waiting, or timeouts come by themselves.
IDLE_TIMEOUT = 1.0
_JSON = "content-type: application/json"


def event(number: int) -> bytes:
    return b'data: {"n": %d}\n\n' % number


WHOLE = b"".join(map(event, range(EVENTS))) + b"data: [DONE]\n\n"


async def unary(request: Seen, peer: Peer) -> None:
    await peer.answer(request.body, _JSON)


async def stream(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    for number in range(EVENTS):
        await peer.chunk(event(number))
        await asyncio.sleep(0)
    await peer.chunk(b"data: [DONE]\n\n")
    await peer.end_stream()


async def trickle(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    for at in range(0, len(WHOLE), 9):
        await peer.chunk(WHOLE[at : at + 9])
        await asyncio.sleep(0.002)
    await peer.end_stream()


async def trickled_header(_: Seen, peer: Peer) -> None:
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok":
        await peer.send(bytes((byte,)))
        await asyncio.sleep(0.001)


async def early_reset(_: Seen, peer: Peer) -> None:
    peer.reset()


async def early_close(_: Seen, peer: Peer) -> None:
    peer.close()


async def early_stall(_: Seen, peer: Peer) -> None:
    await peer.until_closed()


async def half_header(_: Seen, peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-le")
    peer.close()


async def no_http(_: Seen, peer: Peer) -> None:
    await peer.send(b"\x00\x01 hello\r\n\r\n")
    peer.close()


async def huge_header(_: Seen, peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n")
    peer.close()


async def late_reset(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    await peer.chunk(event(0))
    await asyncio.sleep(0.01)
    peer.reset()


async def late_close(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    await peer.chunk(event(0) + b"data: {")
    peer.close()


async def late_stall(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    await peer.chunk(event(0))
    await peer.until_closed()


async def bad_chunk(_: Seen, peer: Peer) -> None:
    await peer.start_stream()
    await peer.chunk(event(0))
    await asyncio.sleep(0.01)
    await peer.send(b"zz\r\nboom\r\n")
    await peer.until_closed()


async def short_body(_: Seen, peer: Peer) -> None:
    await peer.answer(b"", _JSON, "content-length: 100", length=False)
    await peer.send(b'{"a": ')
    peer.close()


async def long_body(_: Seen, peer: Peer) -> None:
    await peer.answer(b"okay, and more", _JSON, "content-length: 4", length=False)
    await peer.until_closed()


@dataclass(frozen=True)
class Fate:
    """What the backend does, and what an honest answer to the client is then."""

    backend: Callable[[Seen, Peer], Awaitable[None]]
    honest: Callable[[Answer, bytes], bool]
    weight: int = 1


def _status(status: int) -> Callable[[Answer, bytes], bool]:
    """A whole answer in vLLM's error shape."""

    def check(answer: Answer, _: bytes) -> bool:
        error = json.loads(answer.body)["error"]
        return answer.complete and answer.status == error["code"] == status

    return check


def _error_event(status: int) -> Callable[[Answer, bytes], bool]:
    """A stream that begins as it should, and ends with one error event and `[DONE]`."""

    def check(answer: Answer, _: bytes) -> bool:
        parts = answer.body.split(b"\n\n")
        said = json.loads(parts[-3].removeprefix(b"data: "))["error"]
        return (
            answer.complete
            and answer.body.startswith(event(0))
            and answer.body.count(b'"error"') == 1
            and (parts[-2], parts[-1], said["code"]) == (b"data: [DONE]", b"", status)
        )

    return check


def _whole(body: bytes) -> Callable[[Answer, bytes], bool]:
    return lambda answer, _: answer.complete and (answer.status, answer.body) == (200, body)


FATES: dict[str, Fate] = {
    "unary": Fate(unary, lambda a, sent: a.complete and (a.status, a.body) == (200, sent), 30),
    "stream": Fate(stream, _whole(WHOLE), 30),
    "trickle": Fate(trickle, _whole(WHOLE), 2),
    "trickled-header": Fate(trickled_header, _whole(b"ok")),
    "early-reset": Fate(early_reset, _status(502), 2),
    "early-close": Fate(early_close, _status(502), 2),
    "early-stall": Fate(early_stall, _status(504)),
    "half-header": Fate(half_header, _status(502)),
    "no-http": Fate(no_http, _status(502)),
    "huge-header": Fate(huge_header, _status(502)),
    "late-reset": Fate(late_reset, _error_event(502), 3),
    "late-close": Fate(late_close, _error_event(502), 3),
    "late-stall": Fate(late_stall, _error_event(504)),
    "bad-chunk": Fate(bad_chunk, _error_event(502), 2),
    "short-body": Fate(short_body, lambda a, _: a.status == 200 and not a.complete, 2),
    # Where the bytes too many come with the rest, the answer is no valid HTTP.
    "long-body": Fate(
        long_body, lambda a, b: _whole(b"okay")(a, b) if a.status == 200 else _status(502)(a, b), 2
    ),
}


async def _script(request: Seen, peer: Peer) -> None:
    await FATES[request.line.split()[1].strip("/")].backend(request, peer)


@dataclass
class Chaos:
    """A gate, in front of one backend that misbehaves and, beside it, one that is not there."""

    gate: Gate
    fleet: Fleet
    backend: FaultyBackend
    seed: int
    ends: Counter[str] = field(default_factory=Counter)
    dishonest: list[str] = field(default_factory=list)

    async def run(self, number: int, at_a_time: int, leaving: float) -> None:
        """Send `number` requests; a share of `leaving` goes away at a random moment."""
        dice = random.Random(self.seed)  # noqa: S311 - a simulation
        names = list(FATES)
        weights = [fate.weight for fate in FATES.values()]
        fates = iter(
            [
                (name, dice.uniform(0, 0.03) if dice.random() < leaving else None)
                for name in dice.choices(names, weights, k=number)
            ]
        )

        async def visitor() -> None:
            for name, stay in fates:
                await self.visit(name, stay)
                self.backend.seen.clear()

        self.seed += 1
        await asyncio.gather(*(visitor() for _ in range(at_a_time)))

    async def visit(self, name: str, stay: float | None) -> None:
        body = b'{"fate": "%s"}' % name.encode()
        async with client_of(self.gate.port) as client:
            if stay is not None:
                self.ends["left"] += 1
                await client.send("POST", f"/{name}", body=body)
                await asyncio.sleep(stay)
                client.leave()
                return
            async with asyncio.timeout(20):
                answer = await client.ask("POST", f"/{name}", body=body)
        honest = False
        with suppress(ValueError, KeyError):
            honest = FATES[name].honest(answer, body)
        self.ends[f"{name}: {answer.status if honest else 'dishonest'}"] += 1
        if not honest:
            self.dishonest.append(f"{name}: {answer}")

    async def settle(self) -> None:
        """Wait until nothing is in flight; what never ends fails here."""
        await eventually(lambda: self.gate.metric("proxy_in_flight") == 0, 10)
        await eventually(lambda: all(m.backend.in_flight == 0 for m in self.fleet.members))
        await eventually(lambda: self.backend.open == 0, 10)


@dataclass(frozen=True)
class Held:
    """What a process holds: tasks and open files, which must not grow."""

    tasks: int
    files: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        return cls(len(asyncio.all_tasks()), sum(1 for _ in Path("/proc/self/fd").iterdir()))


async def held_again(before: Held) -> Held:
    """Wait until no more is held than before; the kernel takes a moment to report a close."""
    now = Held.now()
    for _ in range(50):
        if now.tasks <= before.tasks and now.files <= before.files:
            break
        await asyncio.sleep(0.2)
        now = Held.now()
    return now


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def chaos(
    stack: AsyncExitStack, dead_url: str, seed: int = 1, idle_timeout: float = IDLE_TIMEOUT
) -> Chaos:
    """Begin; ends with `stack`."""
    faulty = await stack.enter_async_context(faulty_backend(_script))
    registry = CollectorRegistry()
    fleet = Fleet(
        [
            Backend(url, connect_timeout=20, idle_timeout=idle_timeout)
            for url in (faulty.url, dead_url)
        ],
        BreakerLimits(failures=10**9, open_seconds=0.05),
        RetryLimits(retries=3, pause=0.001),
        FleetMetrics(registry),
    )
    gate = await stack.enter_async_context(
        gate_of(
            fleet,
            registry=registry,
            limits=BodyLimits(2**20),
            capacity=CapacityLimits(in_flight=10_000),
            pace=Pace(write_timeout=5, max_seconds=30),
        )
    )
    return Chaos(gate, fleet, faulty, seed)
