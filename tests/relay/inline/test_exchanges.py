"""The relay with a verifier, in front of backends that do exactly what a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from app.catalogue import CatalogueLibrary
from app.relay.client import BodyLimits
from app.relay.inline.facts import ReplayFacts
from app.relay.inline.outcome import Exchange, Outcome, replay_exchange
from app.relay.inline.verifier import InlineLimits, InlineVerifier
from app.relay.metrics import InlineMetrics, RelayMetrics
from app.relay.relay import Relay
from app.relay.upstream import Backend
from app.replay.evidence import ReplayOptions
from app.request_rules.checker import RequestChecker
from app.request_rules.seed_place import derive_seed
from app.request_rules.served import unknown_server
from tests.relay.faulty import FaultyBackend, Peer, Script, Seen, faulty_backend
from tests.relay.harness import RawClient, client_of, eventually, listening
from tests.relay.inline.test_outcome import REQUEST, RESPONSE

GENERATE = "/inference/v1/generate"
JSON = "content-type: application/json"
VERIFY = "x-vllm-admission-replay: Verify"


class Direct:
    """Replays in the verifier's own thread."""

    def replay(self, exchange: Exchange) -> Outcome:
        if exchange.request == b'{"sampling_params": {}, "crash": 1}':
            raise ZeroDivisionError("boom")
        return replay_exchange(exchange)

    def close(self) -> None: ...


@dataclass
class Stage:
    backend: FaultyBackend
    client: RawClient
    verifier: InlineVerifier
    registry: CollectorRegistry

    def counted(self, verdict: str) -> float:
        name = "vllm_admission_inline_replays_total"
        return self.registry.get_sample_value(name, {"verdict": verdict}) or 0.0


@asynccontextmanager
async def stage(
    script: Script, limits: InlineLimits | None = None, *, inject_seeds: bool = False
) -> AsyncIterator[Stage]:
    registry = CollectorRegistry()
    served = unknown_server(CatalogueLibrary().get("0.32.0"))
    facts = ReplayFacts("0.32.0", ReplayOptions())
    verifier = InlineVerifier(facts, limits or InlineLimits(), InlineMetrics(registry), Direct())
    async with faulty_backend(script) as faulty:
        backend = Backend(faulty.url, connect_timeout=2, idle_timeout=5)
        relay = Relay(
            backend,
            RequestChecker(served, inject_seeds=inject_seeds),
            RelayMetrics(registry),
            BodyLimits(2**23),
            verifier,
        )
        try:
            async with listening(relay) as port, client_of(port) as client:
                yield Stage(faulty, client, verifier, registry)
        finally:
            await backend.aclose()
            await verifier.aclose()
    assert verifier.budget.used == 0


async def _whole(_: Seen, peer: Peer) -> None:
    await peer.answer(RESPONSE, JSON)


async def _chunked(_: Seen, peer: Peer) -> None:
    await peer.start_stream(JSON)
    for start in range(0, len(RESPONSE), 1000):
        await peer.chunk(RESPONSE[start : start + 1000])
    await peer.end_stream()


@pytest.mark.parametrize("script", [_whole, _chunked])
@pytest.mark.asyncio
async def test_a_held_body_arrives_as_it_was_sent(script: Script) -> None:
    async with stage(script) as s:
        answer = await s.client.ask("POST", GENERATE, VERIFY, body=REQUEST)
    assert answer.first("x-vllm-admission-replay") == "consistent; rows=12; exact=12"
    assert (answer.body, answer.complete) == (RESPONSE, True)
    assert s.backend.seen[0].all("x-vllm-admission-replay") == []


@pytest.mark.asyncio
async def test_a_backend_that_breaks_off_while_held_is_a_502() -> None:
    async def breaks(_: Seen, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n" + JSON.encode() + b"\r\ncontent-length: 99\r\n\r\n{")
        peer.reset()

    async with stage(breaks) as s:
        answer = await s.client.ask("POST", GENERATE, VERIFY, body=REQUEST)
        assert s.counted("skipped:incomplete") == 1
    assert answer.status == 502


@pytest.mark.asyncio
async def test_a_stream_that_breaks_off_is_incomplete() -> None:
    async def breaks(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        await peer.chunk(b"data: {}\n\n")
        peer.reset()

    async with stage(breaks) as s:
        answer = await s.client.ask("POST", GENERATE, VERIFY, body=REQUEST)
        await eventually(lambda: s.counted("skipped:incomplete"))
    assert b"vllm-admission-replay" not in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.asyncio
async def test_a_comment_begins_a_line_of_its_own() -> None:
    async def half(_: Seen, peer: Peer) -> None:
        await peer.start_stream()
        await peer.chunk(b"data: {}")
        await peer.end_stream()

    async with stage(half) as s:
        answer = await s.client.ask("POST", GENERATE, VERIFY, body=REQUEST)
    head, _, comment = answer.body.partition(b"\n\n")
    assert head == b"data: {}"
    assert comment.startswith(b": vllm-admission-replay unusable; reason=")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([JSON, "content-encoding: gzip"], "encoded"),
        (["content-type: text/plain"], "media-type"),
        ([], "media-type"),
    ],
)
@pytest.mark.asyncio
async def test_what_cannot_be_read_passes_and_says_why(fields: list[str], reason: str) -> None:
    async def script(_: Seen, peer: Peer) -> None:
        await peer.answer(b"abc", *fields)

    async with stage(script) as s:
        answer = await s.client.ask("POST", GENERATE, VERIFY, body=REQUEST)
    assert answer.first("x-vllm-admission-replay") == f"skipped; reason={reason}"
    assert answer.body == b"abc"


@pytest.mark.asyncio
async def test_a_crash_of_the_replay_harms_nobody() -> None:
    async with stage(_whole) as s:
        body = b'{"sampling_params": {}, "crash": 1}'
        answer = await s.client.ask("POST", GENERATE, VERIFY, body=body)
        assert s.counted("failed") == 1
    assert answer.first("x-vllm-admission-replay") == "failed; reason=internal-error"
    assert answer.body == RESPONSE


@pytest.mark.asyncio
async def test_a_request_over_the_limit_is_counted_once() -> None:
    async with stage(_whole, InlineLimits(buffer_bytes=10)) as s:
        await s.client.ask("POST", GENERATE, "x-vllm-admission-replay: what", body=REQUEST)
        counts = s.counted("skipped:too-large") + s.counted("skipped:unknown-value")
    assert counts == 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [10, 2 * 2**20])
@pytest.mark.asyncio
async def test_a_seeded_body_has_the_right_length(chunked: bool, size: int) -> None:
    async def echo(request: Seen, peer: Peer) -> None:
        await peer.answer(request.body, "content-type: application/octet-stream")

    body = json.dumps({"token_ids": [1], "sampling_params": {}, "x": "y" * size}).encode()
    async with stage(echo, inject_seeds=True) as s:
        fields = ["x-request-id: abc"]
        if chunked:
            fields.append("transfer-encoding: chunked")
            await s.client.send("POST", GENERATE, *fields)
            s.client.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            answer = await s.client.rest(await s.client.head())
        else:
            answer = await s.client.ask("POST", GENERATE, *fields, body=body)
    seed = derive_seed("abc")
    assert answer.body == body.replace(b"{}", b'{"seed": %d}' % seed)
    assert answer.first("x-vllm-admission-seed") == str(seed)
    assert s.backend.seen[0].all("content-length") == [str(len(answer.body))]


@pytest.mark.asyncio
async def test_ending_drops_what_waits() -> None:
    async with stage(_whole, InlineLimits(sample=1)) as s:
        for _ in range(5):
            await s.client.ask("POST", GENERATE, body=REQUEST)
    await asyncio.sleep(0)
