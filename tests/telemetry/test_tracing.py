"""Spans: what a tracing backend would be sent for a request through the gate."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import UnusableInput
from app.main import create_app
from app.serving import demo_command, simulator_of
from app.settings import Settings
from app.telemetry import genai
from app.telemetry.tracing import Tracing, make_tracing
from tests.support import serving

VERSION = "0.32.0"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
CHAT = {
    "model": "toy",
    "messages": [{"role": "user", "content": "my secret prompt"}],
    "max_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 1,
}


class Recorder:
    """An application that keeps the headers of what reaches it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        await self._app(scope, receive, send)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    made: Tracing = make_tracing(exporter)
    monkeypatch.setattr("app.main.make_tracing", lambda: made)
    return exporter


@asynccontextmanager
async def _gate() -> AsyncIterator[tuple[Recorder, httpx.AsyncClient]]:
    command = demo_command(VERSION)
    backend = Recorder(simulator_of(VERSION, command))
    async with serving(backend) as url:
        settings = Settings(
            backend_url=url, serve_config=command, vllm_version=VERSION, tracing=True
        )
        async with (
            serving(create_app(settings)) as gate,
            httpx.AsyncClient(base_url=gate, trust_env=False) as client,
        ):
            backend.headers.clear()
            yield backend, client


def _of_chat(spans: Sequence[ReadableSpan]) -> tuple[ReadableSpan, ReadableSpan]:
    chat = [s for s in spans if (s.attributes or {}).get("url.path") == "/v1/chat/completions"]
    (server,) = (s for s in chat if s.kind is SpanKind.SERVER)
    (client,) = (s for s in chat if s.kind is SpanKind.CLIENT)
    return server, client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_a_request_is_a_span_in_and_a_span_out_of_the_callers_trace(
    exporter: InMemorySpanExporter, stream: bool
) -> None:
    body = {**CHAT, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with _gate() as (backend, client):
        answer = await client.post(
            "/v1/chat/completions",
            json=body,
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "r-1"},
        )
        assert answer.status_code == 200, answer.text
        (seen,) = (h["traceparent"] for h in backend.headers if "content-length" in h)
    server, out = _of_chat(exporter.get_finished_spans())
    assert server.parent is not None
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == PARENT
    assert out.parent is not None
    assert out.parent.span_id == server.context.span_id
    assert seen == f"00-{TRACE}-{out.context.span_id:016x}-01"
    assert server.name == "POST /v1/chat/completions"
    inward, outward = dict(server.attributes or {}), dict(out.attributes or {})
    assert inward["http.response.status_code"] == outward["http.response.status_code"] == 200
    assert inward["vllm_admission.request_id"] == "r-1"
    assert outward["gen_ai.operation.name"] == out.name == "chat"
    assert outward["gen_ai.request.model"] == "toy"
    assert outward["gen_ai.request.temperature"] == 0.5
    assert outward["gen_ai.request.top_k"] == 5
    assert outward["gen_ai.usage.output_tokens"] == 4
    assert outward["gen_ai.response.finish_reasons"] == ("length",)
    assert server.status.status_code is out.status.status_code is StatusCode.UNSET
    assert "secret" not in server.to_json() + out.to_json()


@pytest.mark.asyncio
async def test_a_failing_backend_fails_both_spans(exporter: InMemorySpanExporter) -> None:
    settings = Settings(backend_url="http://127.0.0.1:9", connect_timeout=0.2, tracing=True)
    async with (
        serving(create_app(settings)) as gate,
        httpx.AsyncClient(base_url=gate, trust_env=False) as client,
    ):
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 502
    server, out = _of_chat(exporter.get_finished_spans())
    assert server.status.status_code is out.status.status_code is StatusCode.ERROR
    assert dict(server.attributes or {})["error.type"] == "backend-unreachable"


def test_without_the_extra_the_setting_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UnusableInput, match=r"vllm-admission\[otel\]"):
        create_app(Settings(tracing=True))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"temperature": "hot", "n": true, "model": 7, "seed": {}}', b"\xff"],
)
def test_a_body_that_is_none_of_ours_has_no_parameters(body: bytes) -> None:
    attributes = genai.request_attributes("chat", body)
    assert set(attributes) == {"gen_ai.operation.name", "gen_ai.provider.name"}


def test_sampling_parameters_of_generate_are_found_one_level_down() -> None:
    body = b'{"token_ids": [1], "sampling_params": {"n": 2, "max_tokens": 9, "seed": 1e30}}'
    attributes = genai.request_attributes("generate_content", body)
    assert attributes["gen_ai.request.choice.count"] == 2
    assert attributes["gen_ai.request.max_tokens"] == 9


def test_the_tail_of_a_stream_that_begins_within_an_event_is_read() -> None:
    tail = (
        b'ent":"x"}}]}\n\ndata: {"choices":[{"finish_reason":"stop"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
        b"data: [DONE]\n\n"
    )
    assert genai.answer_attributes(tail, streamed=True) == {
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 5,
    }
