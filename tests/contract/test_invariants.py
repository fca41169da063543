"""What holds on any server with masks, simulated or real: determinism, rows that replay."""

from __future__ import annotations

from typing import Any

import pytest

from app.replay.report import replay
from tests.contract.cases import GENERATE, PROMPT, Case
from tests.contract.conftest import Server
from tests.contract.contract import Answer, assert_replay_invariants, exchange

SETTINGS = (
    {"top_k": 1},
    {"top_k": 8, "top_p": 0.9},
    {"top_k": 12, "temperature": 2.0},
    {"top_k": 12, "temperature": 0.3, "min_p": 0.05},
    {"top_k": 16, "repetition_penalty": 1.5, "presence_penalty": 0.5},
    {"top_k": 4, "allowed_token_ids": [71, 72, 73]},
)


def _ask(server: Server, *, stream: bool = False, **sampling: Any) -> tuple[Any, Answer]:
    given = {"seed": 7, "max_tokens": 8, "logprobs": 20, "ignore_eos": True, **sampling}
    body = {"token_ids": PROMPT, "sampling_params": given, "stream": stream}
    answer = exchange(server.url, Case("invariant", GENERATE, body=body))
    assert answer.status == 200, answer.body
    return body, answer


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_rows_keep_their_promises_and_replay(server: Server, sampling: dict[str, Any]) -> None:
    request, answer = _ask(server, **sampling)

    assert assert_replay_invariants(answer.json(), top_k=sampling["top_k"]) == 8
    report = replay({"vllm_version": server.version, "request": request, "response": answer.json()})
    assert report.verdict == "consistent", report.findings
    assert report.rows["mismatch"] == 0


def test_the_same_seed_gives_the_same_rows(server: Server) -> None:
    first, second, other = (_ask(server, top_k=20, seed=seed)[1].json() for seed in (3, 3, 4))

    assert first["choices"] == second["choices"]
    assert first["choices"] != other["choices"]


def test_a_stream_has_the_rows_of_the_whole_answer(server: Server) -> None:
    whole = _ask(server, top_k=8)[1].json()["choices"][0]

    *chunks, done = _ask(server, stream=True, top_k=8)[1].events()

    assert done == "[DONE]"
    parts = [chunk["choices"][0] for chunk in chunks]
    assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
    content = [entry for part in parts for entry in part["logprobs"]["content"]]
    assert content == whole["logprobs"]["content"]
    masks = [part["sampling_mask"] for part in parts]
    if any(mask is not None for mask in masks):
        assert [row for mask in masks for row in mask] == whole["sampling_mask"]
