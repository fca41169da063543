"""Inline verification and seed injection in the whole service, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from app.api import proxy
from app.main import create_app
from app.relay.inline.outcome import Exchange, Outcome, replay_exchange
from app.relay.inline.verifier import is_sampled
from app.replay.report import replay
from app.serving import demo_command, simulator_of
from app.settings import Settings
from tests.relay.harness import client_of as raw_client_of
from tests.relay.harness import eventually
from tests.support import serving
from tests.tampering import TokenSwapper

GENERATE = "/inference/v1/generate"
PARAMS = {"top_k": 8, "temperature": 1.0, "max_tokens": 12, "logprobs": 8, "ignore_eos": True}
SEEDED = {"token_ids": [1, 2, 3], "sampling_params": {**PARAMS, "seed": 7}}
UNSEEDED = {"token_ids": [1, 2, 3], "sampling_params": PARAMS}
VERIFY = {"x-vllm-admission-replay": "verify"}
COMMENT = re.compile(rb": vllm-admission-replay ([^\n]*)\n\n\Z")


@dataclass
class DirectWorker:
    """Replays in the verifier's own thread, when it may."""

    may: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def replay(self, exchange: Exchange) -> Outcome:
        assert self.may.wait(30)
        return replay_exchange(exchange)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> DirectWorker:
    worker = DirectWorker()
    worker.may.set()
    monkeypatch.setattr(proxy, "ProcessWorker", lambda: worker)
    return worker


@dataclass
class Scene:
    """A client of the gate, and what the gate counts."""

    client: httpx.AsyncClient
    port: int
    seen: list[dict[str, Any]]

    async def generate(self, body: Any = SEEDED, **headers: str) -> httpx.Response:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(GENERATE, json=body, headers=fields)

    async def metrics(self) -> dict[str, float]:
        lines = (await self.client.get("/metrics")).text.splitlines()
        return {
            name: float(value)
            for name, _, value in (ln.rpartition(" ") for ln in lines if not ln.startswith("#"))
        }

    async def counted(self, verdict: str) -> float:
        name = f'vllm_admission_inline_replays_total{{verdict="{verdict}"}}'
        return (await self.metrics()).get(name, 0.0)

    async def until(self, truth: Callable[[dict[str, float]], object]) -> None:
        async with asyncio.timeout(10):
            while not truth(await self.metrics()):
                pass  # each look is a request, which lets the others run

    async def until_counted(self, verdict: str, count: float = 1) -> None:
        name = f'vllm_admission_inline_replays_total{{verdict="{verdict}"}}'
        await self.until(lambda metrics: metrics.get(name, 0) >= count)

    async def until_nothing_is_kept(self) -> None:
        await self.until(lambda metrics: not metrics["vllm_admission_inline_replay_buffer_bytes"])


@asynccontextmanager
async def scene(
    version: str = "0.32.0",
    *,
    command: str | None = None,
    wrap: Callable[[Any], Any] = lambda app: app,
    **settings: Any,
) -> AsyncIterator[Scene]:
    command = command or demo_command(version)
    seen: list[dict[str, Any]] = []
    simulated = wrap(simulator_of(version, command))

    async def backend(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({n.decode(): v.decode() for n, v in scope["headers"]})
        await simulated(scope, receive, send)

    known = {"serve_config": command, "vllm_version": version, **settings}
    async with (
        serving(backend) as backend_url,
        serving(create_app(Settings(backend_url=backend_url, **known))) as gate,
        httpx.AsyncClient(base_url=gate, trust_env=False) as client,
    ):
        yield Scene(client, int(gate.rpartition(":")[2]), seen)


def comparable(body: bytes) -> bytes:
    return re.sub(rb'"created": ?\d+', b"", body)


@pytest.mark.parametrize("version", ["0.28.0", "0.31.0", "0.33.0"])
@pytest.mark.asyncio
async def test_who_asks_gets_the_verdict_on_a_whole_response(
    worker: DirectWorker, version: str
) -> None:
    async with scene(version) as s:
        plain = await s.generate(x_request_id="one")
        asked = await s.generate(x_request_id="one", **VERIFY)
        assert await s.counted("consistent") == 1
    assert asked.headers["x-vllm-admission-replay"] == "consistent; rows=12; exact=12"
    assert "x-vllm-admission-replay" not in plain.headers
    assert comparable(asked.content) == comparable(plain.content)
    assert all("x-vllm-admission-replay" not in fields for fields in s.seen)


@pytest.mark.parametrize("sample", [0.0, 1.0])
@pytest.mark.asyncio
async def test_a_stream_is_the_same_with_and_without_but_for_the_last_comment(
    worker: DirectWorker, sample: float
) -> None:
    body = {**SEEDED, "stream": True}
    async with scene(replay_sample=sample) as s:
        plain = await s.generate(body, x_request_id="one")
        asked = await s.generate(body, x_request_id="one", **VERIFY)
        await s.until_counted("consistent", 1 + sample)
        await s.until_nothing_is_kept()
    found = COMMENT.search(asked.content)
    assert found is not None
    assert found[1] == b"consistent; rows=12; exact=12"
    assert comparable(asked.content[: found.start()]) == comparable(plain.content)
    assert plain.content.endswith(b"data: [DONE]\n\n")
    assert "x-vllm-admission-replay" not in plain.headers


@pytest.mark.asyncio
async def test_events_reach_the_client_before_the_verdict_is_known(worker: DirectWorker) -> None:
    worker.may.clear()
    async with scene() as s, raw_client_of(s.port) as client:
        fields = [f"{name}: {value}" for name, value in VERIFY.items()]
        body = json.dumps({**SEEDED, "stream": True}).encode()
        await client.send("POST", GENERATE, "content-type: application/json", *fields, body=body)
        head = await client.head()
        received = b""
        while not received.endswith(b"data: [DONE]\n\n"):
            received += await asyncio.wait_for(client.part(), 10)
        worker.may.set()
        answer = await client.rest(head)
    assert answer.complete
    assert answer.body == b": vllm-admission-replay consistent; rows=12; exact=12\n\n"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_a_backend_that_swaps_a_token_is_caught(worker: DirectWorker, stream: bool) -> None:
    with capture_logs() as logs:
        async with scene(wrap=TokenSwapper, replay_sample=1) as s:
            sampled = await s.generate({**SEEDED, "stream": stream}, x_request_id="one")
            asked = await s.generate({**SEEDED, "stream": stream}, **VERIFY)
            await s.until_counted("inconsistent", 2)
            rows = (await s.metrics())[
                'vllm_admission_inline_replay_rows_total{outcome="mismatch"}'
            ]
    assert sampled.status_code == asked.status_code == 200
    said = asked.headers.get("x-vllm-admission-replay")
    if stream:
        found = COMMENT.search(asked.content)
        said = found[1].decode() if found is not None else None
    expected = 'inconsistent; rows=12; exact=11; mismatch=1; rules="replay-draw"'
    assert said == expected
    assert rows == 2
    (entry, _) = [entry for entry in logs if entry["event"] == "inline replay"]
    assert (entry["request_id"], entry["rules"]) == ("one", ["replay-draw"])
    assert entry["findings"][0]["rows"]
    assert "token_ids" not in str(logs)
    assert "[1, 2, 3]" not in str(logs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_an_injected_seed_makes_an_unseeded_rollout_provable(
    worker: DirectWorker, stream: bool
) -> None:
    body = {**UNSEEDED, "stream": stream, "sampling_params": {**PARAMS, "n": 3}}
    async with scene(inject_seed=True) as s:
        response = await s.generate(body, x_request_id="rollout-1", **VERIFY)
        again = await s.generate(body, x_request_id="rollout-1")
        await s.until_counted("consistent")
    seed = response.headers["x-vllm-admission-seed"]
    assert again.headers["x-vllm-admission-seed"] == seed
    case = {
        "vllm_version": "0.32.0",
        "request": {**body, "sampling_params": {**PARAMS, "n": 3, "seed": int(seed)}},
        "response": response.text if stream else response.json(),
    }
    report = replay(case)
    assert (report.verdict, report.rows["exact"]) == ("consistent", 36)


@pytest.mark.asyncio
async def test_without_injection_an_unseeded_rollout_stays_unproven(worker: DirectWorker) -> None:
    async with scene() as s:
        response = await s.generate(UNSEEDED, **VERIFY)
    verdict = response.headers["x-vllm-admission-replay"]
    assert verdict.startswith("unproven; rows=12")
    assert verdict.endswith("reason=no_seed")
    assert "x-vllm-admission-seed" not in response.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "once", "top_k": 5, "max_tokens": 4}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "top_k": 5, "max_tokens": 4},
        ),
    ],
)
@pytest.mark.asyncio
async def test_the_openai_routes_are_seeded_too(
    worker: DirectWorker, path: str, body: dict[str, Any]
) -> None:
    async with scene(inject_seed=True) as s:
        fields = {"x-request-id": "one"}
        texts = []
        for _ in range(2):
            response = await s.client.post(path, json=body, headers=fields)
            assert response.headers["x-vllm-admission-seed"].isdigit()
            choice = response.json()["choices"][0]
            texts.append(choice.get("text") or choice["message"]["content"])
        seeded = await s.client.post(path, json={**body, "seed": 1}, headers=fields)
        several = await s.client.post(path, json={**body, "prompt": ["a", "b"]}, headers=fields)
        metrics = await s.metrics()
    assert texts[0] == texts[1]
    assert "x-vllm-admission-seed" not in seeded.headers
    injected = f'vllm_admission_seed_injections_total{{outcome="injected",route="{path}"}}'
    if path == "/v1/completions":
        assert "x-vllm-admission-seed" not in several.headers
        left = injected.replace("injected", "left", 1)
        assert metrics[left.replace("seed_left", "seed_injections")] == 1
    assert metrics[injected] >= 2


@pytest.mark.asyncio
async def test_a_full_queue_drops_and_counts(worker: DirectWorker) -> None:
    worker.may.clear()
    async with scene(replay_sample=1, replay_queue=2) as s:
        for _ in range(5):
            assert (await s.generate()).status_code == 200
        await s.until_counted("skipped:queue-full", 3)
        assert (await s.metrics())["vllm_admission_inline_replay_waiting"] == 2
        asked = await s.generate(**VERIFY)
        worker.may.set()
        await s.until_counted("consistent", 2)
        await s.until_nothing_is_kept()
    assert asked.headers["x-vllm-admission-replay"] == "skipped; reason=queue-full"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_a_response_over_the_buffers_limit_passes_whole_and_is_skipped(
    worker: DirectWorker, stream: bool
) -> None:
    body = {**SEEDED, "stream": stream}
    async with scene(replay_sample=1, replay_buffer_bytes=2000) as s:
        plain = await s.generate(body, x_request_id="one")
        asked = await s.generate(body, x_request_id="one", **VERIFY)
        await s.until_counted("skipped:too-large", 2)
        await s.until_nothing_is_kept()
    said = "skipped; reason=too-large"
    if stream:
        assert asked.content.endswith(f": vllm-admission-replay {said}\n\n".encode())
    else:
        assert asked.headers["x-vllm-admission-replay"] == said
        assert comparable(asked.content) == comparable(plain.content)
    assert len(plain.content) > 2000


@pytest.mark.asyncio
async def test_a_verdict_that_takes_too_long_is_not_waited_for_but_counted(
    worker: DirectWorker,
) -> None:
    worker.may.clear()
    async with scene(replay_wait=0.05) as s:
        asked = await s.generate(**VERIFY)
        worker.may.set()
        await s.until_counted("consistent")
    assert asked.headers["x-vllm-admission-replay"] == "skipped; reason=not-in-time"


@pytest.mark.asyncio
async def test_a_client_that_leaves_within_a_stream_frees_what_was_kept(
    worker: DirectWorker,
) -> None:
    params = {**PARAMS, "seed": 7, "max_tokens": 1500}
    body = json.dumps({**SEEDED, "sampling_params": params, "stream": True}).encode()
    async with scene(replay_sample=1) as s:
        async with raw_client_of(s.port) as client:
            await client.send("POST", GENERATE, "content-type: application/json", body=body)
            await client.head()
            await client.part()
            assert (await s.metrics())["vllm_admission_inline_replay_buffer_bytes"] > 0
            client.leave()
        await s.until_counted("skipped:incomplete")
        await s.until_nothing_is_kept()


@pytest.mark.asyncio
async def test_a_client_that_leaves_while_its_verdict_is_made_leaves_it_counted(
    worker: DirectWorker,
) -> None:
    worker.may.clear()
    async with scene() as s:
        async with raw_client_of(s.port) as client:
            fields = [f"{name}: {value}" for name, value in VERIFY.items()]
            body = json.dumps(SEEDED).encode()
            await client.send(
                "POST", GENERATE, "content-type: application/json", *fields, body=body
            )
            await s.until(lambda metrics: metrics["vllm_admission_inline_replay_waiting"])
            client.leave()
        worker.may.set()
        await s.until_counted("consistent")
        await s.until_nothing_is_kept()


@pytest.mark.parametrize(
    ("body", "fields", "reason"),
    [
        ({**SEEDED, "token_ids": []}, VERIFY, "status"),
        (SEEDED, {"x-vllm-admission-replay": "please"}, "unknown-value"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_not_replayed_says_why(
    worker: DirectWorker, body: Any, fields: dict[str, str], reason: str
) -> None:
    async with scene() as s:
        response = await s.generate(body, **fields)
        assert await s.counted(f"skipped:{reason}") == 1
    assert response.headers["x-vllm-admission-replay"] == f"skipped; reason={reason}"


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
@pytest.mark.asyncio
async def test_other_routes_have_nothing_to_replay(worker: DirectWorker, path: str) -> None:
    async with scene() as s:
        response = await s.client.post(
            path, json={"prompt": "a", "top_k": 5, "max_tokens": 3}, headers=VERIFY
        )
    assert response.status_code == 200
    assert response.headers["x-vllm-admission-replay"] == "skipped; reason=other-route"


@pytest.mark.asyncio
async def test_the_version_alone_is_enough_and_none_is_too_little(worker: DirectWorker) -> None:
    async with scene(serve_config=None) as s:
        told = await s.generate(**VERIFY)
    async with scene(serve_config=None, vllm_version=None) as s:
        untold = await s.generate(**VERIFY)
    assert told.headers["x-vllm-admission-replay"].startswith("consistent")
    assert untold.headers["x-vllm-admission-replay"] == "skipped; reason=no-version"


@pytest.mark.asyncio
async def test_a_backend_without_the_masks_it_was_to_have_is_unusable(
    worker: DirectWorker,
) -> None:
    command = demo_command("0.32.0").replace("--return-sampling-mask ", "")
    with capture_logs() as logs:
        async with scene(command=command, serve_config=demo_command("0.32.0")) as s:
            response = await s.generate(**VERIFY)
    assert response.headers["x-vllm-admission-replay"] == "unusable; reason=no-sampling-mask"
    assert any("--return-sampling-mask" in str(entry.get("detail")) for entry in logs)


@pytest.mark.asyncio
async def test_a_backend_that_was_started_without_masks_is_not_asked_for_them(
    worker: DirectWorker,
) -> None:
    command = demo_command("0.32.0").replace("--return-sampling-mask ", "")
    async with scene(command=command, replay_sample=1) as s:
        response = await s.generate(**VERIFY)
        await s.generate()
        assert await s.counted("skipped:masks-off") == 2
    assert response.headers["x-vllm-admission-replay"] == "skipped; reason=masks-off"


@pytest.mark.asyncio
async def test_streams_of_versions_that_have_no_masks_in_them_are_skipped(
    worker: DirectWorker,
) -> None:
    async with scene("0.31.0", replay_sample=1) as s:
        response = await s.generate({**SEEDED, "stream": True}, **VERIFY)
        assert await s.counted("skipped:no-masks-in-streams") == 1
    said = "skipped; reason=no-masks-in-streams"
    assert response.headers["x-vllm-admission-replay"] == said
    assert response.text.endswith(f"data: [DONE]\n\n: vllm-admission-replay {said}\n\n")


@pytest.mark.asyncio
async def test_the_worker_ends_with_the_service(worker: DirectWorker) -> None:
    async with scene():
        assert not worker.closed
    await eventually(lambda: worker.closed)


@pytest.mark.asyncio
async def test_with_the_real_process() -> None:
    async with scene(replay_sample=1) as s:
        response = await s.generate(**VERIFY)
        assert response.headers["x-vllm-admission-replay"] == "consistent; rows=12; exact=12"


def test_the_share_that_is_sampled_is_the_one_asked_for() -> None:
    ids = [f"request-{number}" for number in range(20_000)]
    assert not any(is_sampled(i, 0.0) for i in ids)
    assert all(is_sampled(i, 1.0) for i in ids)
    assert 140 <= sum(is_sampled(i, 0.01) for i in ids) <= 260
    chosen = {i for i in ids if is_sampled(i, 0.01)}
    assert chosen <= {i for i in ids if is_sampled(i, 0.1)}
