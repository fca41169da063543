"""The servers under contract: simulated ones, or a real one named in the environment.

`CONTRACT_URL` and `CONTRACT_VERSION` run the tests against a server that is already up; the
lab does so with real vLLM. Without them every recorded version is simulated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings
from tests.contract.contract import RECORDED
from tests.simulator.serving import serving


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and the version it claims to be."""

    url: str
    version: str


def _versions() -> list[str]:
    given = os.environ.get("CONTRACT_VERSION")
    return [given] if given else sorted(path.stem for path in RECORDED.glob("*.jsonl"))


@pytest.fixture(scope="session", params=_versions())
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    version = str(request.param)
    url = os.environ.get("CONTRACT_URL")
    if url:
        yield Server(url, version)
        return
    settings = SimulatorSettings(vllm_version=version, max_model_len=256)
    with serving(create_simulator(settings)) as url:
        yield Server(url, version)
