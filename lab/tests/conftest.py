"""The servers under test: real vLLM, started once for all tests that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.environment import Lab
from lab.server import Server
from lab.tests.rollouts import LOGPROBS, NGRAM, Tally

VERSION = "0.32.0"
MORE_LOGPROBS = ("--max-logprobs", str(LOGPROBS))

_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Tally()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test time for the server that it may be the first to need."""
    for item in items:
        item.add_marker(pytest.mark.timeout(600))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash[_TALLY].lines()
    if lines:
        terminalreporter.section("replayed rows of real vLLM")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    return pytestconfig.stash[_TALLY]


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Fail at once, and say what to do, where the lab has not been set up."""
    Lab.default().require(VERSION)


@pytest.fixture(scope="session")
def vllm() -> Iterator[Server]:
    """A server that returns as many logprobs as any mask here has ids."""
    with Server(VERSION, MORE_LOGPROBS) as server:
        yield server


@pytest.fixture(scope="module")
def default_vllm() -> Iterator[Server]:
    """A server with the default limits, which the contract's requests are written for."""
    with Server(VERSION) as server:
        yield server


@pytest.fixture(scope="module")
def speculating_vllm() -> Iterator[Server]:
    """A server that drafts tokens from what the sequence already holds."""
    with Server(VERSION, (*MORE_LOGPROBS, "--speculative-config", NGRAM)) as server:
        yield server
