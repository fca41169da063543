"""Lengths against the context, at the edges, as each version counts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.request_rules.checker import RequestChecker
from app.request_rules.limits import Limits
from app.request_rules.policy import Policy
from app.request_rules.request import Route
from tests.request_rules.serving import served_by_command

COMMAND = "vllm serve m --max-model-len 16"
LENGTH, CUT = "request-context-length", "request-max-tokens-cut"


def _found(route: Route, body: dict[str, Any], version: str, limits: Limits | None = None) -> str:
    checker = RequestChecker(
        served_by_command(COMMAND, version), policy=Policy(limits=limits or Limits())
    )
    findings = checker.examine(route, json.dumps(body).encode()).findings
    return ", ".join(rule for rule, _ in findings)


def _ids(count: int) -> list[int]:
    return [1] * count


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        ({"prompt": _ids(15), "max_tokens": 1}, "", ""),
        ({"prompt": _ids(16), "max_tokens": 1}, LENGTH, LENGTH),
        ({"prompt": _ids(17), "max_tokens": 1}, LENGTH, LENGTH),
        ({"prompt": _ids(15), "max_tokens": 2}, LENGTH, CUT),
        ({"prompt": _ids(1), "max_tokens": 16}, LENGTH, CUT),
        ({"prompt": _ids(1), "max_tokens": 17}, LENGTH, LENGTH),
        ({"prompt": "a", "max_tokens": 15}, "", ""),
        ({"prompt": "a", "max_tokens": 16}, LENGTH, ""),
        ({"prompt": "a" * 10_000, "max_tokens": 1}, "", ""),
        ({"prompt": "a"}, LENGTH, ""),  # 16 unless sent
        ({"prompt": "a", "max_tokens": None}, LENGTH, ""),  # as if it were not sent
        ({"prompt": _ids(3)}, LENGTH, ""),
        ({"prompt": [_ids(3), _ids(16)], "max_tokens": 1}, LENGTH, LENGTH),
        ({"prompt": ["a", "b"], "max_tokens": 17}, LENGTH, LENGTH),
        ({"prompt": _ids(99), "max_tokens": 1, "truncate_prompt_tokens": 3}, "", ""),
        ({"prompt": _ids(99), "max_tokens": 1, "truncate_prompt_tokens": -1}, "", ""),
        ({"prompt": _ids(99), "max_tokens": 1, "truncate_prompt_tokens": 16}, LENGTH, LENGTH),
        ({"prompt": _ids(3), "max_tokens": "15"}, LENGTH, CUT),
        ({"prompt": _ids(3), "max_tokens": "many"}, "", ""),
        ({"prompt": [1, True], "max_tokens": 1}, "", ""),
        ({"prompt": [], "max_tokens": 1}, "", ""),
    ],
)
def test_completions(body: dict[str, Any], old: str, new: str) -> None:
    assert _found(Route.COMPLETIONS, body, "0.28.0") == old
    assert _found(Route.COMPLETIONS, body, "0.31.0") == old
    assert _found(Route.COMPLETIONS, body, "0.32.0") == new
    assert _found(Route.COMPLETIONS, body, "0.33.0") == new


@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
@pytest.mark.parametrize(
    ("count", "params", "found"),
    [
        (15, {}, ""),
        (16, {}, LENGTH),
        (15, {"max_tokens": 1}, ""),
        (15, {"max_tokens": 2}, CUT),
        (1, {"max_tokens": 1000}, CUT),
        (1, {"max_tokens": None}, ""),
    ],
)
def test_generate_cuts_the_output(
    version: str, count: int, params: dict[str, Any], found: str
) -> None:
    body = {"token_ids": _ids(count), "sampling_params": params}
    assert _found(Route.GENERATE, body, version) == found


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (Route.CHAT, {"messages": [], "max_tokens": 17}),
        (Route.CHAT, {"messages": [], "max_tokens": 1, "max_completion_tokens": 17}),
        (Route.RESPONSES, {"input": "a", "max_output_tokens": 17}),
        (Route.MESSAGES, {"messages": [], "max_tokens": 17}),
    ],
)
def test_chat_routes_know_the_output_only(route: Route, body: dict[str, Any]) -> None:
    assert _found(route, body, "0.32.0") == LENGTH
    fits = {
        name: min(value, 15) if isinstance(value, int) else value for name, value in body.items()
    }
    assert _found(route, fits, "0.28.0") == ""


@pytest.mark.parametrize(
    ("model", "refused", "warned"),
    [
        ({"model_type": "qwen2"}, True, False),
        ({"model_type": "gpt_oss"}, False, False),
        (None, False, True),
    ],
)
def test_gpt_oss_checks_no_output_of_chats(
    model: dict[str, Any] | None, refused: bool, warned: bool
) -> None:
    checker = RequestChecker(served_by_command(COMMAND, "0.32.0", model))
    found = checker.examine(Route.CHAT, b'{"messages": [], "max_tokens": 17}')
    assert (found.refusal is not None, bool(found.warnings)) == (refused, warned)
    assert found.findings == [(LENGTH, "error" if refused else "warning")] * (refused or warned)
    text = checker.examine(Route.COMPLETIONS, b'{"prompt": "a", "max_tokens": 17}')
    assert text.refusal is not None


def test_parts_that_are_still_to_be_expanded_are_not_counted() -> None:
    body = {"token_ids": _ids(16), "content_parts": [], "sampling_params": {}}
    assert _found(Route.GENERATE, body, "0.32.0") == ""


def test_the_field_that_counts_is_max_completion_tokens() -> None:
    body = {"messages": [], "max_tokens": 99, "max_completion_tokens": 3}
    assert _found(Route.CHAT, body, "0.32.0") == ""


def test_a_text_is_bounded_by_the_longest_token_if_that_is_known() -> None:
    limits = Limits(characters_per_token=10)
    long = {"prompt": "a" * 161, "max_tokens": 1}
    assert _found(Route.COMPLETIONS, long, "0.32.0", limits) == LENGTH
    assert _found(Route.COMPLETIONS, {**long, "prompt": "a" * 150}, "0.32.0", limits) == ""


def test_without_a_length_nothing_is_said() -> None:
    checker = RequestChecker(served_by_command("vllm serve m"))
    body = json.dumps({"prompt": [1] * 10_000, "max_tokens": 10**6}).encode()
    assert checker.examine(Route.COMPLETIONS, body).findings == []


def test_an_encoder_takes_a_prompt_of_full_length() -> None:
    model = {"is_encoder_decoder": True, "model_type": "x", "architectures": ["X"]}
    served = served_by_command(COMMAND, "0.32.0", model)
    assert served.is_encoder_decoder
    body = json.dumps({"prompt": [1] * 16, "max_tokens": 1}).encode()
    assert LENGTH not in dict(RequestChecker(served).examine(Route.COMPLETIONS, body).findings)


_LONG = "eight ch" * 700
_SPOKEN = [{"role": "user", "content": [{"type": "text", "text": _LONG}, {"type": "image_url"}]}]


@pytest.mark.parametrize(
    ("route", "prompt"),
    [
        (Route.COMPLETIONS, {"prompt": _LONG}),
        (Route.COMPLETIONS, {"prompt": [_LONG[:2800], _LONG[:2800]]}),
        (Route.COMPLETIONS, {"prompt": [[1] * 350, [2] * 350]}),
        (Route.CHAT, {"messages": [{"role": "user", "content": _LONG}]}),
        (Route.CHAT, {"messages": _SPOKEN}),
        (Route.CHAT_BATCH, {"messages": [_SPOKEN, _SPOKEN]}),
    ],
)
def test_prompt_logprobs_of_any_kind_of_prompt_cost(route: Route, prompt: dict[str, Any]) -> None:
    model = {"vocab_size": 152064, "model_type": "llama"}
    served = served_by_command("vllm serve m --max-logprobs -1", model=model)
    for count, refused in ((-1, True), (100, False)):
        body = json.dumps({**prompt, "prompt_logprobs": count, "max_tokens": 1}).encode()
        found = dict(RequestChecker(served).examine(route, body).findings)
        assert (found.get("request-prompt-logprobs-cost") == "error") is refused


@pytest.mark.parametrize(
    "messages", [5, None, [5], [[]], [{"content": 5}], [{"content": [5, {"text": 6}, None]}]]
)
def test_messages_of_any_form_count_as_nothing(messages: object) -> None:
    served = served_by_command("vllm serve m --max-logprobs -1", model={"vocab_size": 152064})
    for route in (Route.CHAT, Route.CHAT_BATCH):
        body = json.dumps({"messages": messages, "prompt_logprobs": -1}).encode()
        examination = RequestChecker(served).examine(route, body)
        assert (examination.refusal, examination.crashed) == (None, [])
