"""Names in requests: models, members, and token ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.request_rules.checker import RequestChecker
from app.request_rules.examination import Examination
from app.request_rules.request import Route
from app.request_rules.served import unknown_server
from tests.request_rules.serving import served_by_command

LIBRARY = CatalogueLibrary()
MODEL = {"vocab_size": 1000}


def _examine(
    command: str,
    route: Route,
    body: dict[str, Any],
    version: str = "0.32.0",
    model: dict[str, Any] | None = None,
) -> Examination:
    checker = RequestChecker(served_by_command(command, version, model))
    return checker.examine(route, json.dumps(body).encode())


def _rules(found: Examination) -> list[str]:
    return [rule for rule, _ in found.findings]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("vllm serve m", {"m"}),
        ("vllm serve m --served-model-name a b", {"a", "b"}),
        ("vllm serve m --enable-lora --lora-modules x=/p y=/q", {"m", "x", "y"}),
        ("""vllm serve m --enable-lora --lora-modules '{"name":"z","path":"/p"}'""", {"m", "z"}),
        ("vllm serve m --enable-lora --lora-modules x=/p $MORE", None),
        ("vllm serve m --enable-lora --lora-modules $NAME=/p", None),
        ("vllm serve m --enable-lora --lora-modules x=$PATHS", None),
        ("vllm serve $MODEL", None),
        ("vllm serve m --served-model-name $NAME", None),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING=true vllm serve m", None),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING=0 vllm serve m", {"m"}),
        ("VLLM_SKIP_MODEL_NAME_VALIDATION=1 vllm serve m", None),
    ],
)
def test_the_names_that_a_server_has(command: str, names: set[str] | None) -> None:
    assert served_by_command(command).model_names == names


@pytest.mark.parametrize("model", ["m", "", None, 5, ["m"]])
def test_a_served_name_no_name_or_what_vllm_refuses_itself_passes(model: object) -> None:
    found = _examine("vllm serve m", Route.CHAT, {"messages": [], "model": model})
    assert found.refusal is None


def test_a_name_that_is_nearly_right_is_told() -> None:
    command = "vllm serve m --served-model-name qwen3-8b"
    found = _examine(command, Route.CHAT, {"messages": [], "model": "Qwen3_8b"})
    assert found.refusal is not None
    assert "did you mean qwen3-8b?" in found.refusal["error"]["message"]


@pytest.mark.parametrize(
    ("route", "body", "advice"),
    [
        (Route.COMPLETIONS, {"prompt": "a", "topk": 1}, "'topk' is ignored; did you mean top_k"),
        (
            Route.COMPLETIONS,
            {"prompt": "a", "max_completion_tokens": 1},
            "; it is a member of /v1/chat/completions",
        ),
        (Route.CHAT, {"messages": [], "suffix": "x"}, "; it is a member of /v1/completions"),
        (Route.GENERATE, {"token_ids": [1], "sampling_params": {}, "top_k": 1}, "belongs into"),
        (
            Route.GENERATE,
            {"token_ids": [1], "sampling_params": {"stream": True}},
            "belongs beside sampling_params",
        ),
        (Route.MESSAGES, {"messages": [], "zzz": 1}, "'zzz' is ignored"),
    ],
)
def test_unknown_members_are_told_with_advice(
    route: Route, body: dict[str, Any], advice: str
) -> None:
    (warning,) = _examine("vllm serve m", route, body).warnings
    assert warning.startswith("request-unknown-key; ")
    assert advice in warning


def test_at_most_five_unknown_members_are_told() -> None:
    body = {"messages": [], **{f"zz{i}": i for i in range(99)}}
    assert len(_examine("vllm serve m", Route.CHAT, body).warnings) == 5


def test_members_are_those_of_the_version() -> None:
    body = {"token_ids": [1], "sampling_params": {}, "output_mode": "text"}
    assert _rules(_examine("vllm serve m", Route.GENERATE, body, "0.32.0")) == []
    assert _rules(_examine("vllm serve m", Route.GENERATE, body, "0.31.0")) == [
        "request-unknown-key"
    ]


def test_what_the_version_ignores_no_rule_looks_at() -> None:
    speculating = (
        """vllm serve m --speculative-config '{"method":"ngram","num_speculative_tokens":2}'"""
    )
    body = {"input": "a", "min_p": 0.5, "temperature": 1}
    old = _examine(speculating, Route.RESPONSES, body, "0.28.0")
    assert _rules(old) == ["request-unknown-key"]
    assert "request-speculation" in _rules(_examine(speculating, Route.RESPONSES, body, "0.32.0"))


@pytest.mark.parametrize(
    ("params", "old", "new"),
    [
        ({"logit_bias": {"999": 1}}, False, False),
        ({"logit_bias": {" 1000": 1}}, True, True),
        ({"logit_bias": {"x": 1, "1000": 1}}, False, False),
        ({"stop_token_ids": [1000]}, False, True),
        ({"allowed_token_ids": [-1]}, False, True),
        ({"allowed_token_ids": [0, 999]}, False, False),
        ({"logprob_token_ids": [1000], "logprobs": 1}, True, True),
        ({"trace_decode_token_ids": [1000]}, False, True),
        ({"stop_token_ids": ["1000", "x"]}, False, False),
    ],
)
def test_ids_are_compared_where_the_version_does(
    params: dict[str, Any], old: bool, new: bool
) -> None:
    body = {"token_ids": [1], "sampling_params": params}
    for version, refused in (("0.28.0", old), ("0.29.0", new), ("0.33.0", new)):
        found = _examine("vllm serve m", Route.GENERATE, body, version, MODEL)
        assert ("request-vocabulary" in _rules(found)) is refused, version


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_a_batch_hands_on_what_chat_takes(version: str) -> None:
    killer = {"messages": [[]], "allowed_token_ids": list(range(1025)), "zzz": 1}
    command = "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m"
    found = _rules(_examine(command, Route.CHAT_BATCH, killer, version))
    assert found == ["request-allowed-token-ids", "request-unknown-key"]


def test_beam_search_has_no_such_parameters() -> None:
    body = {"prompt": "a", "use_beam_search": True, "logit_bias": {"1000": 1}}
    assert _rules(_examine("vllm serve m", Route.COMPLETIONS, body, model=MODEL)) == []


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_of_an_unknown_server_the_fields_are_known_all_the_same(version: str) -> None:
    checker = RequestChecker(unknown_server(LIBRARY.get(version)))
    body = {"messages": [], "max_tokens": 10**9, "model": "any", "guided_json": {}}
    found = checker.examine(Route.CHAT, json.dumps(body).encode())
    assert found.refusal is None
    assert _rules(found) == ["request-unknown-key"]


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_every_version_knows_its_routes(version: str) -> None:
    facts = LIBRARY.get(version).requests
    assert set(facts.routes) == set(Route)
    assert {"prompt", "max_tokens", "logit_bias"} <= facts.routes[Route.COMPLETIONS].names
    assert facts.routes[Route.COMPLETIONS].defaults["max_tokens"] == 16
    assert facts.sampling_params is not None
    assert {"top_k", "seed", "allowed_token_ids"} <= facts.sampling_params.names
    assert facts.limits["MAX_NUM_LOGIT_BIAS_TOKENS"] == 1024
    assert facts.output_is_reserved is (LIBRARY.get(version).version.minor < 32)
