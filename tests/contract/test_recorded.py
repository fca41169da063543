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

    answer = exchange(server.url, case)

    if case.races_in(server.version):
        assert (answer.status, answer.events()[-1]) == (expected.status, "[DONE]")
        return
    found = differences(expected, answer)
    assert not found, "\n".join(found)
