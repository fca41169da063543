from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.request_rules.checker import RequestChecker
from app.request_rules.policy import Action, Policy
from app.request_rules.request import Route, read_request
from app.request_rules.seed_place import derive_seed
from app.request_rules.seeding import lacks_seed, seed_place
from app.request_rules.served import Served, served_by, unknown_server
from app.serve_config.resolve import resolve

LIBRARY = CatalogueLibrary()
UNKNOWN = unknown_server(LIBRARY.get("0.32.0"))


def served(command: str) -> Served:
    config = resolve(parse_command(command), LIBRARY.get("0.32.0")).config
    assert config is not None
    return served_by(config)


def lacks(route: Route, body: Any, backend: Served = UNKNOWN) -> bool:
    request = read_request(route, json.dumps(body).encode())
    assert request is not None
    return lacks_seed(request, backend)


@pytest.mark.parametrize("seed", [{}, {"seed": None}, {"seed": -1}, {"seed": "-1"}])
def test_absent_null_and_minus_one_are_no_seed(seed: dict[str, Any]) -> None:
    assert lacks(Route.GENERATE, {"token_ids": [1], "sampling_params": {"top_k": 5, **seed}})
    assert lacks(Route.COMPLETIONS, {"prompt": "a", **seed})
    assert lacks(Route.CHAT, {"messages": [], **seed})


@pytest.mark.parametrize(
    "params",
    [
        {"seed": 0},
        {"seed": 2**63 - 1},
        {"seed": "words"},
        {"temperature": 0},
        {"temperature": 0.0},
        {"use_beam_search": True},
        {"trace_decode_token_ids": [1]},
    ],
)
def test_seeded_greedy_and_forced_requests_are_left(params: dict[str, Any]) -> None:
    assert not lacks(Route.GENERATE, {"token_ids": [1], "sampling_params": params})
    assert not lacks(Route.COMPLETIONS, {"prompt": "a", **params})


def test_other_routes_are_left() -> None:
    assert not lacks(Route.RESPONSES, {"input": "a"})
    assert not lacks(Route.MESSAGES, {"messages": []})


def test_a_server_whose_default_is_greedy_draws_nothing() -> None:
    command = """vllm serve m --override-generation-config '{"temperature": 0}'"""
    assert not lacks(Route.COMPLETIONS, {"prompt": "a"}, served(command))
    assert lacks(Route.GENERATE, {"token_ids": [1], "sampling_params": {}}, served(command))


def test_the_seed_is_the_documented_hash_of_the_id() -> None:
    digest = hashlib.sha256(b"vllm-admission seed 1\0abc").hexdigest()
    assert derive_seed("abc") == int(digest[:13], 16)
    assert derive_seed("abc") == 1562353964029177  # stable across releases


@settings(deadline=None)
@given(st.text(max_size=20))
def test_a_seed_leaves_room_for_n_and_survives_doubles(request_id: str) -> None:
    seed = derive_seed(request_id)
    assert 0 <= seed < 2**52
    assert int(float(seed + 16_384)) == seed + 16_384 < 2**63


def seeded(route: Route, body: str) -> str | None:
    place = seed_place(route, body.encode())
    return None if place is None else place.seeded(body.encode(), "abc").body.decode()


SEED = derive_seed("abc")


@pytest.mark.parametrize(
    ("route", "before", "after"),
    [
        (
            Route.GENERATE,
            '{"sampling_params" : {"n":2 } , "token_ids":[1 ,2]}',
            f'{{"sampling_params" : {{"n":2, "seed": {SEED} }} , "token_ids":[1 ,2]}}',
        ),
        (
            Route.GENERATE,
            '{"token_ids":[1],"sampling_params":{}}',
            f'{{"token_ids":[1],"sampling_params":{{"seed": {SEED}}}}}',
        ),
        (
            Route.GENERATE,
            '{"token_ids":[1],"sampling_params":{"seed":null,"top_k":5}}',
            f'{{"token_ids":[1],"sampling_params":{{"seed":{SEED},"top_k":5}}}}',
        ),
        (
            Route.CHAT,
            '{"messages":[{"seed":5}]}\n',
            f'{{"messages":[{{"seed":5}}], "seed": {SEED}}}\n',
        ),
        (Route.COMPLETIONS, '{"prompt":[1,2]}', f'{{"prompt":[1,2], "seed": {SEED}}}'),
        (Route.COMPLETIONS, '{"prompt":["["]}', f'{{"prompt":["["], "seed": {SEED}}}'),
        (Route.COMPLETIONS, '{"prompt":[[1,2]]}', f'{{"prompt":[[1,2]], "seed": {SEED}}}'),
    ],
)
def test_only_the_seed_is_added(route: Route, before: str, after: str) -> None:
    assert seeded(route, before) == after


@pytest.mark.parametrize("prompt", ['["a","a"]', "[[1],[1]]", '[ "a" , "b" ]', "[[1],[2]", "[[]"])
def test_prompts_that_would_share_a_seed_are_left(prompt: str) -> None:
    assert seeded(Route.COMPLETIONS, f'{{"prompt": {prompt}}}') is None


def test_what_cannot_be_read_is_left() -> None:
    assert seeded(Route.GENERATE, "[]") is None
    assert seeded(Route.GENERATE, '{"token_ids": [1]}') is None
    assert seeded(Route.GENERATE, '{"sampling_params": [1]}') is None


def test_the_checker_says_so_only_where_it_was_told_to() -> None:
    body = b'{"token_ids": [1], "sampling_params": {}}'
    assert RequestChecker(UNKNOWN, inject_seeds=True).examine(Route.GENERATE, body).lacks_seed
    assert not RequestChecker(UNKNOWN).examine(Route.GENERATE, body).lacks_seed
    assert not RequestChecker(UNKNOWN, inject_seeds=True).examine(Route.GENERATE, b"{").lacks_seed


def test_the_place_is_that_in_what_is_sent() -> None:
    masks = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
    policy = Policy({"sampling-mask-top-k": Action.REPAIR})
    checker = RequestChecker(served(masks), inject_seeds=True, policy=policy)
    body = b'{"token_ids": [1], "sampling_params": {"max_tokens": 1}}'
    examination = checker.examine(Route.GENERATE, body)
    assert examination.body is not None
    assert examination.seed_place is not None
    assert examination.seed_place.seeded(examination.body, "abc").body == (
        b'{"token_ids": [1], "sampling_params": {"max_tokens": 1, "top_k": 20, "seed": %d}}' % SEED
    )
    refused = checker.examine(Route.GENERATE, b'{"sampling_params": {"logprobs": -5, "top_k": 5}}')
    assert (refused.refusal is not None, refused.seed_place) == (True, None)
