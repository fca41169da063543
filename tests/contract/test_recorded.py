"""Every request of the contract gets the answer that real vLLM was recorded giving."""

from __future__ import annotations

from functools import cache

import pytest

from tests.contract.cases import Case, all_cases
from tests.contract.conftest import Server
from tests.contract.contract import Answer, differences, exchange, recorded


@cache
def _recorded(version: str) -> dict[str, Answer]:
    return recorded(version)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_answers_like_the_recorded_server(server: Server, case: Case) -> None:
    expected = _recorded(server.version)[case.name]

    found = differences(expected, exchange(server.url, case))

    assert not found, "\n".join(found)
