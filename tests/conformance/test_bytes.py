"""Answers that the simulated backend does not give: what comes out is what the backend sent."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from starlette.types import Receive, Scope, Send

from app.main import create_app
from app.settings import Settings
from app.telemetry.access import AccessLog
from tests.conformance.comparison import ask_both
from tests.contract.cases import CHAT, Case
from tests.support import serving

_PACKED = gzip.compress(b'{"object": "chat.completion"}' * 500)
_BINARY = bytes(range(256)) * 8192
_TOO = "\N{SNOWMAN}".encode()


@dataclass(frozen=True)
class Scripted:
    """An answer, and the parts that its body is sent in."""

    status: int = 200
    fields: Sequence[tuple[bytes, bytes]] = ()
    parts: Sequence[bytes] = (b"",)
    methods: Sequence[str] = field(default=("POST", "GET", "HEAD", "OPTIONS", "DELETE"))


_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_ANSWERS = {
    "gzip": Scripted(
        fields=[
            (b"content-type", b"application/json"),
            (b"content-encoding", b"gzip"),
            (b"content-length", str(len(_PACKED)).encode()),
        ],
        parts=[_PACKED[:100], _PACKED[100:]],
    ),
    "gzip in chunks": Scripted(fields=[(b"content-encoding", b"gzip")], parts=[_PACKED]),
    "binary": Scripted(fields=[(b"content-type", b"audio/wav")], parts=[_BINARY[:1], _BINARY[1:]]),
    "unknown encoding": Scripted(fields=[(b"content-encoding", b"zstd, x")], parts=[b"\xff" * 9]),
    "repeated fields": Scripted(
        fields=[
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2; Path=/"),
            (b"warning", b"199 - first"),
            (b"x-vllm-thing", b"\xe4"),
            (b"warning", b"199 - second"),
        ],
        parts=[b"{}"],
    ),
    "events as they may be": Scripted(
        fields=[_EVENTS],
        parts=[
            b"\xef\xbb\xbfdata: bom\r\n\r\n",
            b": comment\n\n",
            b"data: cut in ",
            b"two\ndata: and of two lines\n\n",
            b"data: \xe2",
            _TOO[1:] + b"\n\n",
            b"event: named\rdata: old line ends\r\r",
            b"data: [DONE]\n\n",
        ],
    ),
    "events that are packed": Scripted(
        fields=[_EVENTS, (b"content-encoding", b"gzip")], parts=[_PACKED[:50], _PACKED[50:]]
    ),
    "nothing": Scripted(status=204, parts=[b""]),
    "unchanged": Scripted(status=304, fields=[(b"etag", b'"x"')], parts=[b""]),
    "unknown status": Scripted(status=499, parts=[b"odd"]),
    "elsewhere": Scripted(status=307, fields=[(b"location", b"https://other.example/v1?a=1")]),
    "elsewhere, relative": Scripted(status=307, fields=[(b"location", b"../v1/models")]),
    "unauthorised": Scripted(
        status=401,
        fields=[(b"www-authenticate", b'Bearer realm="a"'), (b"www-authenticate", b"Basic")],
        parts=[b'{"error": "Unauthorized"}'],
    ),
    "engine dead": Scripted(
        status=500, fields=[(b"content-type", b"text/plain")], parts=[b"Internal Server Error"]
    ),
}


class ScriptedBackend:
    """Answers each path with its script, a part at a time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        more = True
        while more:
            more = (await receive()).get("more_body", False)
        name = scope["path"].removeprefix("/scripted/").replace("_", " ")
        answer = _ANSWERS.get(name, Scripted(parts=[b"{}"]))
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.fields}
        )
        for part in answer.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0.002)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def _both() -> AsyncIterator[tuple[str, str]]:
    async with serving(ScriptedBackend()) as backend:
        settings = Settings(
            backend_url=backend,
            vllm_version="0.32.0",
            drift_interval=0,
            access_log=AccessLog.OFF,
        )
        async with serving(create_app(settings)) as gated:
            yield backend, gated


@pytest.mark.asyncio
async def test_every_kind_of_answer_comes_out_as_it_went_in() -> None:
    async with _both() as (backend, gated):
        for name, answer in _ANSWERS.items():
            path = f"/scripted/{name.replace(' ', '_')}"
            for method in answer.methods:
                raw = "x" if method == "POST" else None
                case = Case(f"{method} {name}", path, method=method, raw=raw)
                both = await ask_both(backend, gated, case)
                assert both.differences() == []
                if method == "POST" and answer.status not in {204, 304}:
                    assert both.gated.body == b"".join(answer.parts)


@pytest.mark.asyncio
async def test_a_body_of_many_megabytes_passes_both_ways() -> None:
    async with _both() as (backend, gated):
        case = Case("large", CHAT, raw="[" + "7," * 4_000_000 + "7]")
        assert (await ask_both(backend, gated, case)).differences() == []
