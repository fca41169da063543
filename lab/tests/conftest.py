"""The servers under test: real vLLM, started once for all tests that use it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from lab.environment import Lab
from lab.server import Server
from lab.tests.rollouts import LOGPROBS, NGRAM, Tally

VERSION = "0.32.0"
MORE_LOGPROBS = ("--max-logprobs", str(LOGPROBS))
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
OPTIONS: dict[str, tuple[str, ...]] = {
    "vllm": (*MORE_LOGPROBS, *TOOLS),
    "default_vllm": (),
    "speculating_vllm": (*MORE_LOGPROBS, "--speculative-config", NGRAM),
}


@dataclass(frozen=True, slots=True)
class Starting:
    """A server on its way up."""

    server: Server
    started: Future[None]

    def server_when_up(self) -> Server:
        """Wait for it; a server that failed to start says why."""
        self.started.result()
        return self.server


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


@pytest.fixture(scope="session", autouse=True)
def servers(request: pytest.FixtureRequest, installed: None) -> Iterator[dict[str, Starting]]:
    """Start every server that a selected test needs, while other tests run already."""
    named = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        started = {}
        for name in sorted(OPTIONS.keys() & named):
            server = Server(VERSION, OPTIONS[name])
            stack.callback(server.stop)
            started[name] = Starting(server, pool.submit(server.start))
        yield started


@pytest.fixture(scope="session")
def vllm(servers: dict[str, Starting]) -> Server:
    """A server that returns as many logprobs as any mask here has ids."""
    return servers["vllm"].server_when_up()


@pytest.fixture(scope="session")
def default_vllm(servers: dict[str, Starting]) -> Server:
    """A server with the default limits, which the contract's requests are written for."""
    return servers["default_vllm"].server_when_up()


@pytest.fixture(scope="session")
def speculating_vllm(servers: dict[str, Starting]) -> Server:
    """A server that drafts tokens from what the sequence already holds."""
    return servers["speculating_vllm"].server_when_up()
