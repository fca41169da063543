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
from tests.conformance.comparison import ask_both
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
        settings = Settings(
            backend_url=backend,
            serve_config=command,
            vllm_version=version,
            access_log=AccessLog.OFF,
        )
        async with serving(create_app(settings)) as gated:
            yield direct, gated


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
