"""Probing simulated backends over real sockets."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from app.errors import InvalidEnvelope, UnknownVersion
from app.probe.asking import BackendUnfit
from app.probe.report import ProbeReport, render_text
from app.relay.faults import BackendFault, BackendTimeout, BackendUnreachable
from app.replay.evidence import ReplayOptions
from app.replay.report import ReplayVerdict
from tests.probe.scene import SMALL, probe_app, probe_url, simulator
from tests.simulator.client import VERSIONS
from tests.tampering import TokenSwapper

GENERATE = "/inference/v1/generate"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.asyncio
async def test_an_honest_backend_of_every_version_is_consistent(version: str) -> None:
    report = await probe_app(simulator(vllm_version=version))
    body = report.as_json()
    assert (body["verdict"], body["vllm_version"]) == ("consistent", version)
    assert body["requests"] == {
        "planned": 8,
        "replayed": 8,
        "failed": 0,
        "verdicts": {"consistent": 8},
    }
    assert body["rows"]["total"] == body["rows"]["exact"] == 8 * (6 + 2 * 3)
    assert (body["failures"], body["findings"], body["remarks"]) == ([], [], [])
    assert body["backend"]["model"] == "tiny"


@pytest.mark.asyncio
async def test_a_backend_that_swaps_tokens_is_inconsistent() -> None:
    report = await probe_app(simulator(TokenSwapper))
    body = report.as_json()
    assert body["verdict"] == "inconsistent"
    (finding,) = body["findings"]
    assert finding["rule"] == "replay-draw"
    assert finding["first"]["sampling_params"]["seed"] >= 0
    assert finding["first"]["rows"]
    assert "error[replay-draw]" in render_text(report)


@pytest.mark.asyncio
async def test_the_breakdown_shows_that_only_streams_are_wrong() -> None:
    class OnlyStreams(TokenSwapper):
        def changes(self, body: bytes) -> bool:
            return body.startswith(b"data:")

    report = await probe_app(simulator(OnlyStreams))
    streams = report.as_json()["parameters"]["stream"]
    assert streams["no"]["mismatch"] == 0
    assert streams["yes"]["mismatch"] > 0
    text = render_text(report)
    assert "stream=yes" in text


@pytest.mark.asyncio
async def test_another_versions_draw_is_recognised() -> None:
    options = replace(SMALL, requests=16, max_tokens=24)
    report = await probe_app(simulator(vllm_version="0.31.0"), options, vllm_version="0.30.0")
    body = report.as_json()
    assert body["verdict"] == "inconsistent"
    assert "the server is not the version given" in body["findings"][0]["message"]
    assert body["remarks"] == ["the backend says it is 0.31.0; its answers were replayed as 0.30.0"]


@pytest.mark.asyncio
async def test_what_the_operator_says_counts() -> None:
    backend = simulator(use_fp64_gumbel=True)
    told = await probe_app(backend, replay_options=ReplayOptions(use_fp64_gumbel=True))
    untold = await probe_app(backend)
    assert told.verdict is ReplayVerdict.CONSISTENT
    assert untold.verdict is ReplayVerdict.INCONSISTENT


async def unfit(app: Any, **more: Any) -> str:
    with pytest.raises(BackendUnfit) as caught:
        await probe_app(app, **more)
    return str(caught.value)


@pytest.mark.parametrize(("version", "status"), [("0.31.0", 404), ("0.32.0", 403)])
@pytest.mark.asyncio
async def test_a_disabled_route_names_the_flag(version: str, status: int) -> None:
    said = await unfit(simulator(vllm_version=version, enable_scale_out=False))
    assert f"status {status}" in said
    assert f"start vLLM {version} with --enable-scale-out" in said


@pytest.mark.asyncio
async def test_masks_that_are_off_name_the_flag() -> None:
    said = await unfit(simulator(return_sampling_mask=False))
    assert said.startswith("the backend returns no masks")
    assert "--return-sampling-mask" in said


@pytest.mark.asyncio
async def test_raw_logprobs_are_found() -> None:
    from app.simulator.sampler import LogprobsMode

    report = await probe_app(simulator(logprobs_mode=LogprobsMode.RAW_LOGPROBS))
    assert report.verdict is ReplayVerdict.INCONSISTENT


@pytest.mark.asyncio
async def test_an_api_key_is_asked_for_and_used() -> None:
    backend = simulator(api_keys=("secret",))
    assert "--api-key" in await unfit(backend)
    assert "--api-key" in await unfit(backend, authorization="Bearer wrong")
    report = await probe_app(backend, authorization="Bearer secret")
    assert report.verdict is ReplayVerdict.CONSISTENT


@pytest.mark.asyncio
async def test_a_backend_that_is_down_is_unreachable() -> None:
    with pytest.raises(BackendUnreachable, match="cannot be reached"):
        await probe_url("http://127.0.0.1:1")


@pytest.mark.asyncio
async def test_requests_that_fail_are_counted_and_leave_the_rest_unproven() -> None:
    report = await probe_app(simulator(max_logprobs=10), replace(SMALL, requests=14))
    body = report.as_json()
    assert body["verdict"] == "unproven"
    assert 0 < body["requests"]["failed"] < 14
    assert "greater than max allowed: 10" in body["failures"][0]["error"]
    assert sum(entry["requests"] for entry in body["failures"]) == body["requests"]["failed"]
    assert "failed: " in render_text(report)


@pytest.mark.asyncio
async def test_nothing_that_succeeds_is_unfit_and_says_the_first_error() -> None:
    said = await unfit(simulator(), options=replace(SMALL, token_ids=(5000, 6000)))
    assert "none of 8 requests succeeded" in said
    assert "out of vocabulary" in said
    assert "--token-ids" in said


@pytest.mark.asyncio
async def test_a_model_that_is_too_short_is_said() -> None:
    with pytest.raises(InvalidEnvelope, match="do not fit"):
        await probe_app(simulator(max_model_len=8))
    report = await probe_app(simulator(max_model_len=10))
    assert set(report.as_json()["parameters"]["prompt_length"]) == {"1", "2"}


@pytest.mark.parametrize("version", ["0.27.1", "nonsense"])
@pytest.mark.asyncio
async def test_a_version_without_masks_or_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(UnknownVersion):
        await probe_app(simulator(), vllm_version=version)


Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


def _answering(body: bytes, status: int = 200) -> Answer:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "is this a vLLM server"),
        (b"[]", "is this a vLLM server"),
        (b'{"version": "dev"}', "no version number"),
        (b'{"version": 3}', "is this a vLLM server"),
        (b'{"version": "0.32.0"}', "none of 8 requests succeeded"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_no_vllm_server_is_said_so(body: bytes, says: str) -> None:
    assert says in await unfit(_answering(body))


@pytest.mark.asyncio
async def test_a_hanging_backend_ends_with_the_probes_time() -> None:
    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        while scope["type"] == "http" and (await receive())["type"] != "http.disconnect":
            pass

    with pytest.raises(BackendTimeout):
        await probe_app(hangs, replace(SMALL, max_seconds=0.3))


@pytest.mark.asyncio
async def test_time_that_runs_out_leaves_what_is_known() -> None:
    options = replace(SMALL, requests=40, concurrency=1, max_seconds=1.5)
    report = await probe_app(simulator(token_delay=0.02), options)
    body = report.as_json()
    assert body["verdict"] == "unproven"
    assert body["requests"]["replayed"] >= 1
    assert any("time was over" in failure["error"] for failure in body["failures"])


@pytest.mark.asyncio
async def test_no_more_than_the_given_number_run_at_a_time() -> None:
    running = most = 0
    inner = simulator(token_delay=0.002)

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        if scope.get("path") != GENERATE:
            await inner(scope, receive, send)
            return
        running += 1
        most = max(most, running)
        try:
            await inner(scope, receive, send)
        finally:
            running -= 1

    await probe_app(counting, replace(SMALL, requests=16, concurrency=3))
    assert most == 3


@pytest.mark.asyncio
async def test_a_backend_that_dies_half_way_fails_the_rest() -> None:
    served = 0
    inner = simulator()

    async def dying(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal served
        if scope.get("path") == GENERATE:
            served += 1
            if served > 3:
                raise ConnectionResetError
        await inner(scope, receive, send)

    report: ProbeReport = await probe_app(_quiet(dying))
    body = report.as_json()
    assert body["requests"]["failed"] == 5
    assert body["verdict"] == "unproven"
    assert json.dumps(body)


def _quiet(app: Answer) -> Answer:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except ConnectionResetError:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"boom"})

    return guarded


def test_faults_have_the_status_of_a_gateway() -> None:
    assert issubclass(BackendUnfit, BackendFault)
    assert (BackendUnfit.status, BackendUnfit.slug) == (502, "backend-unfit")
