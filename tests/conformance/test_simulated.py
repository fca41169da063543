"""What a client gets through the gate is what the backend would have told it.

Each request goes to the simulated backend directly and through the gate. What the gate lets
pass has the same status, fields and bytes; what the gate refuses the backend refuses too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.catalogue import CatalogueLibrary
from app.main import create_app
from app.serving import simulator_of
from app.settings import Settings
from app.telemetry.access import AccessLog
from tests.conformance.comparison import ask, ask_both, differences_of
from tests.conformance.recorder import tapped
from tests.conformance.requests import conformance_cases
from tests.support import serving

COMMAND = (
    "vllm serve tiny --return-sampling-mask --logprobs-mode processed_logprobs "
    "--max-model-len 256 --generation-config vllm"
)
VERSIONS = CatalogueLibrary().versions


def command_of(version: str) -> str:
    """The contract's server."""
    scale_out = CatalogueLibrary().get(version).has_flag("enable_scale_out")
    return f"{COMMAND} --enable-scale-out" if scale_out else COMMAND


def settings_for(backend: str, command: str, version: str) -> Settings:
    """Of a gate that knows its backend, and asks it nothing by itself."""
    return Settings(
        backend_url=backend,
        serve_config=command,
        vllm_version=version,
        drift_interval=0,
        access_log=AccessLog.OFF,
    )


@asynccontextmanager
async def both(version: str) -> AsyncIterator[tuple[str, str]]:
    """The URLs of a backend, and of a gate before another one that is just the same.

    Two, because unseeded requests are drawn in the order of their arrival.
    """
    command = command_of(version)
    async with (
        serving(simulator_of(version, command)) as direct,
        serving(simulator_of(version, command)) as backend,
    ):
        settings = settings_for(backend, command, version)
        async with serving(create_app(settings)) as gated:
            yield direct, gated


@pytest.mark.asyncio
async def test_the_backend_gets_the_clients_own_bytes_and_the_client_the_backends() -> None:
    version = VERSIONS[-1]
    command = command_of(version)
    asked = 0
    async with (
        serving(simulator_of(version, command)) as backend,
        tapped(backend) as tap,
        serving(create_app(settings_for(tap.url, command, version))) as gated,
    ):
        for case in conformance_cases():
            tap.clear()
            answer = await ask(gated, case)
            heard = await tap.answer(bodiless=case.method == "HEAD")
            if heard is None:
                continue
            asked += 1
            line, body = tap.request()
            # ASGI does not tell an empty query from none.
            target = case.path.removesuffix("?")
            assert line == f"{case.method} {target} HTTP/1.1"
            assert body == (case.content() or b""), case.name
            if answer.first("location") is None:  # which leads to the gate, as Host does
                assert differences_of(heard, answer) == [], case.name
            assert answer.body == heard.body, case.name
    assert asked > 150


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.asyncio
async def test_what_passes_is_the_backends_own_and_what_does_not_it_refuses_too(
    version: str,
) -> None:
    differences: list[str] = []
    false_refusals: list[str] = []
    passed = 0
    async with both(version) as (direct, gated):
        for case in conformance_cases():
            answers = await ask_both(direct, gated, case)
            if answers.refused:
                if not answers.fails:
                    false_refusals.append(f"{case.name}: {answers.gated.body!r}")
            else:
                passed += 1
                differences += answers.differences()
    assert false_refusals == []
    assert differences == []
    assert passed > 150
