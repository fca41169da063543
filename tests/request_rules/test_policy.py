"""What settings make of findings: reject, warn, repair or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.api.proxy import RequestGate
from app.catalogue import CatalogueLibrary
from app.errors import InvalidEnvelope
from app.request_rules.checker import RequestChecker
from app.request_rules.declarations import RULES
from app.request_rules.examination import Examination
from app.request_rules.limits import Limits
from app.request_rules.policy import Action, Policy, read_actions
from app.request_rules.request import INVOCATIONS, Route
from app.settings import Settings
from tests.request_rules.serving import served_by_command

MASKS = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
SHORT = "vllm serve m --max-model-len 16"


def _examine(
    command: str,
    route: str,
    body: Any,
    actions: dict[str, str] | None = None,
    *,
    version: str = "0.32.0",
    limits: Limits | None = None,
) -> Examination:
    policy = Policy(read_actions(actions or {}, RULES), limits or Limits())
    checker = RequestChecker(served_by_command(command, version), policy=policy)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return checker.examine(route, raw)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"request-modle": "warn"}, "unknown rule 'request-modle'; did you mean request-model"),
        ({"x": "warn"}, "unknown rule 'x'; there are request-allowed-token-ids"),
        ({"request-model": "wran"}, "cannot 'wran', only reject, warn, off"),
        ({"request-model": "repair"}, "request-model cannot 'repair', only reject, warn, off"),
    ],
)
def test_wrong_actions_are_refused_at_start(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidEnvelope, match="VLLM_ADMISSION_REQUEST_RULES") as caught:
        RequestGate(Settings(request_rules=given), CatalogueLibrary(), None, CollectorRegistry())
    assert words in str(caught.value)


def test_the_setting_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ADMISSION_REQUEST_RULES", '{"sampling-mask-top-k": "repair"}')
    monkeypatch.setenv("VLLM_ADMISSION_REQUEST_REPAIR_TOP_K", "7")
    settings = Settings()
    assert settings.request_rules == {"sampling-mask-top-k": "repair"}
    assert settings.request_repair_top_k == 7


def test_errors_can_be_told_of_and_warnings_rejected() -> None:
    body = {"prompt": "a", "max_tokens": 17, "topk": 3}
    usual = _examine(SHORT, Route.COMPLETIONS, body)
    assert usual.refusal is not None
    assert usual.findings == [
        ("request-context-length", "error"),
        ("request-unknown-key", "warning"),
    ]
    turned = _examine(
        SHORT,
        Route.COMPLETIONS,
        body,
        {"request-context-length": "warn", "request-unknown-key": "reject"},
    )
    assert turned.refusal is not None
    assert turned.refusal["error"]["rule"] == "request-unknown-key"
    assert turned.refusal["error"]["param"] == "topk"
    assert [w.split(";")[0] for w in turned.warnings] == ["request-context-length"]


def test_a_rule_that_is_off_says_nothing() -> None:
    actions = {"request-context-length": "off", "request-unknown-key": "off"}
    body = {"prompt": "a", "max_tokens": 17, "topk": 3}
    found = _examine(SHORT, Route.COMPLETIONS, body, actions)
    assert (found.refusal, found.warnings, found.findings) == (None, [], [])


def test_strict_rejects_unknown_keys_unless_the_rule_is_named() -> None:
    strict = ("request-unknown-key",)
    assert read_actions({}, RULES, strict=strict) == {"request-unknown-key": Action.REJECT}
    named = read_actions({"request-unknown-key": "warn"}, RULES, strict=strict)
    assert named == {"request-unknown-key": Action.WARN}


# Repairs


@pytest.mark.parametrize(
    ("route", "before", "after"),
    [
        (
            Route.GENERATE,
            b'{"token_ids" :[1],\n "sampling_params": { "seed":7, "x": 1e5 } }',
            b'{"token_ids" :[1],\n "sampling_params": { "seed":7, "x": 1e5, "top_k": 9 } }',
        ),
        (
            Route.GENERATE,
            b'{"token_ids":[1],"sampling_params":{}}',
            b'{"token_ids":[1],"sampling_params":{"top_k": 9}}',
        ),
        (
            Route.CHAT,
            b'{"messages": [], "top_k": -1, "temperature": 1}\n',
            b'{"messages": [], "top_k": 9, "temperature": 1}\n',
        ),
    ],
)
def test_top_k_is_put_in_and_every_other_byte_kept(
    route: Route, before: bytes, after: bytes
) -> None:
    command = f"{MASKS} --generation-config vllm"
    limits = Limits(repair_top_k=9)
    repair = {"sampling-mask-top-k": "repair"}
    found = _examine(command, route, before, repair, limits=limits)
    assert (found.refusal, found.body) == (None, after)
    assert found.repairs == ["sampling-mask-top-k; top_k=9"]
    assert ("sampling-mask-top-k", "repaired") in found.findings


def test_the_top_k_put_in_is_at_most_the_logprobs_that_come_back() -> None:
    body = b'{"token_ids":[1],"sampling_params":{}}'
    command = f"{MASKS} --max-logprobs 5"
    found = _examine(command, Route.GENERATE, body, {"sampling-mask-top-k": "repair"})
    assert found.body == b'{"token_ids":[1],"sampling_params":{"top_k": 5}}'


@pytest.mark.parametrize(
    ("version", "route", "body", "clamped"),
    [
        ("0.28.0", Route.COMPLETIONS, {"prompt": [1, 2], "max_tokens": 15}, ("max_tokens", 14)),
        ("0.28.0", Route.COMPLETIONS, {"prompt": [[1], [1, 2]], "max_tokens": 99}, None),
        ("0.32.0", Route.COMPLETIONS, {"prompt": "a", "max_tokens": 99}, ("max_tokens", 15)),
        ("0.32.0", Route.COMPLETIONS, {"prompt": [1, 2], "max_tokens": 15}, ("max_tokens", 14)),
        (
            "0.32.0",
            Route.CHAT,
            {"messages": [], "max_tokens": 3, "max_completion_tokens": 99},
            ("max_completion_tokens", 15),
        ),
        ("0.32.0", Route.RESPONSES, {"input": "a", "max_output_tokens": 99}, None),
        (
            "0.32.0",
            Route.GENERATE,
            {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 99}},
            ("max_tokens", 13),
        ),
    ],
)
def test_the_output_is_lowered_to_what_fits(
    version: str, route: Route, body: dict[str, Any], clamped: tuple[str, int] | None
) -> None:
    actions = {"request-context-length": "repair", "request-max-tokens-cut": "repair"}
    found = _examine(SHORT, route, body, actions, version=version)
    assert found.refusal is None
    assert found.body is not None
    edited = json.loads(found.body)
    holder = edited["sampling_params"] if route is Route.GENERATE else edited
    if clamped is None:
        clamped = ("max_output_tokens", 15) if route is Route.RESPONSES else ("max_tokens", 14)
    assert holder[clamped[0]] == clamped[1]


def test_what_cannot_be_repaired_is_rejected() -> None:
    repair = {"request-context-length": "repair"}
    too_long = {"token_ids": list(range(1, 17)), "sampling_params": {}}
    assert _examine(SHORT, Route.GENERATE, too_long, repair).refusal is not None
    text = {"prompt": "a", "max_tokens": 99}
    unknown_length = _examine(SHORT, Route.COMPLETIONS, text, repair, version="0.28.0")
    assert unknown_length.refusal is not None


def test_what_a_repair_leaves_wrong_is_rejected() -> None:
    body = {"token_ids": [1], "sampling_params": {"temperature": 0}}
    found = _examine(MASKS, Route.GENERATE, body, {"sampling-mask-top-k": "repair"})
    assert found.refusal is not None
    assert found.refusal["error"]["rule"] == "sampling-mask-temperature"
    assert (found.body, list(found.repairs)) == (None, [])


def test_a_body_that_cannot_be_edited_is_rejected() -> None:
    body = '{"token_ids": [1], "sampling_params": {}}'.encode("utf-16")
    found = _examine(MASKS, Route.GENERATE, body, {"sampling-mask-top-k": "repair"})
    assert found.refusal is not None


@pytest.mark.parametrize(("action", "lacks"), [("repair", True), ("warn", False), ("off", False)])
def test_missing_seeds_are_a_rule_as_well(action: str, lacks: bool) -> None:
    body = {"token_ids": [1], "sampling_params": {}}
    found = _examine("vllm serve m", Route.GENERATE, body, {"request-seed-missing": action})
    assert found.lacks_seed is lacks
    assert bool(found.warnings) is (action == "warn")


# Ways to reach the same routes


def test_invocations_are_read_as_the_route_they_reach() -> None:
    killer = {"messages": [], "allowed_token_ids": list(range(1025)), "model": "n", "x": 1}
    found = _examine("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m", INVOCATIONS, killer)
    assert [rule for rule, _ in found.findings] == ["request-allowed-token-ids"]
    other = _examine("vllm serve m", INVOCATIONS, {"input": "a", "model": "n"})
    assert other == Examination()
    assert not _examine(
        "vllm serve m", INVOCATIONS, {"prompt": "a"}, {"request-seed-missing": "repair"}
    ).lacks_seed


@pytest.mark.parametrize(
    "body",
    [
        {"messages": 5, "prompt": [1] * 2000, "prompt_logprobs": 100_000},
        {"prompt_embeds": "AAAA", "allowed_token_ids": list(range(1025))},
    ],
)
def test_no_field_of_another_request_hides_an_invocation(body: dict[str, object]) -> None:
    served = "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m --max-logprobs -1"
    assert _examine(served, INVOCATIONS, body).refusal is not None


def test_invocations_of_a_pooling_server_pass() -> None:
    found = _examine(
        "vllm serve m --runner pooling --max-model-len 16",
        INVOCATIONS,
        {"prompt": "a", "max_tokens": 99},
    )
    assert found == Examination()


def test_a_root_path_hides_no_route() -> None:
    checker = RequestChecker(served_by_command("vllm serve m --root-path /a"))
    assert checker.route_of("POST", "/a/v1/completions") == Route.COMPLETIONS
    assert checker.route_of("POST", "/v1/completions") == Route.COMPLETIONS
    assert checker.route_of("POST", "/b/v1/completions") is None


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/pooling", "/v1/models"])
def test_other_routes_pass(path: str) -> None:
    assert RequestChecker(served_by_command("vllm serve m")).route_of("POST", path) is None


def test_an_unknown_model_is_answered_as_vllm_does() -> None:
    found = _examine("vllm serve m", Route.CHAT, {"messages": [], "model": "n"})
    assert found.refusal is not None
    error = found.refusal["error"]
    assert (found.status, error["code"], error["type"]) == (404, 404, "NotFoundError")
    assert (error["param"], error["rule"]) == ("model", "request-model")


def test_a_warning_is_short_whatever_the_client_sent() -> None:
    body = {"messages": [], "model": "n" * 10_000}
    command = f"vllm serve m --served-model-name {'x' * 400}"
    found = _examine(command, Route.CHAT, body, {"request-model": "warn"})
    assert [len(warning) for warning in found.warnings] == [512]
