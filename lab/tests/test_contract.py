"""Real vLLM, the simulated backend, and the recorded answers speak the same wire format."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings
from lab.server import Server
from tests.contract.cases import Case, all_cases
from tests.contract.contract import Answer, differences, exchange, recorded
from tests.simulator.serving import serving


@pytest.fixture(scope="module")
def simulator(default_vllm: Server) -> Iterator[str]:
    settings = SimulatorSettings(vllm_version=default_vllm.version, max_model_len=256)
    with serving(create_simulator(settings)) as url:
        yield url


@pytest.fixture(scope="module")
def recordings(default_vllm: Server) -> dict[str, Answer]:
    return recorded(default_vllm.version)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_the_simulated_backend_answers_like_real_vllm(
    default_vllm: Server, simulator: str, recordings: dict[str, Answer], case: Case
) -> None:
    real = exchange(default_vllm.url, case)

    assert differences(real, exchange(simulator, case)) == []
    assert differences(recordings[case.name], real) == []
