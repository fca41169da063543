"""Whatever a client sends, no rule crashes, and a repair changes nothing else."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalogue import CatalogueLibrary
from app.request_rules.checker import RequestChecker
from app.request_rules.declarations import RULES
from app.request_rules.policy import Action, Policy
from app.request_rules.request import INVOCATIONS, Route
from tests.request_rules.serving import served_by_command

VERSIONS = CatalogueLibrary().versions
MODEL = {"vocab_size": 50, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
COMMAND = (
    "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs "
    "--max-model-len 16 --max-num-seqs 4 --generation-config vllm"
)
_EVERYTHING = Policy(
    {rule.declaration.id: Action.REPAIR for rule in RULES if rule.can_repair}
    | {rule.declaration.id: Action.WARN for rule in RULES if not rule.can_repair}
)
_CHECKERS = [
    RequestChecker(served_by_command(COMMAND, version, MODEL), policy=_EVERYTHING)
    for version in (VERSIONS[0], VERSIONS[-1])
]

_names = st.sampled_from(
    sorted(
        {name for rule in RULES for name in rule.fields if name}
        | {"temperature", "top_k", "max_tokens", "messages", "sampling_params", "zzz", "\u00e4~/"}
        | {"max_completion_tokens", "max_output_tokens", "truncate_prompt_tokens", "min_tokens"}
        | {"tools", "include", "echo", "use_beam_search", "content_parts", "min_p", "\x00"}
    )
)
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([-1, 0, 1, 15, 16, 17, "5", "", "required", "false", "m"])
    | st.text(max_size=5)
)
_values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.integers(-2, 60), max_size=20)
        | st.dictionaries(_names | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)
_bodies = st.dictionaries(_names, _values, max_size=6)
_routes = st.sampled_from([*Route, INVOCATIONS])


@settings(max_examples=150, deadline=None)
@given(_routes, _bodies, _bodies, st.sampled_from(_CHECKERS))
def test_no_request_crashes_a_rule_and_repairs_touch_nothing_else(
    route: str, body: dict[str, Any], sampling: dict[str, Any], checker: RequestChecker
) -> None:
    if route == Route.GENERATE:
        body = {**body, "sampling_params": sampling}
    raw = json.dumps(body).encode()
    examination = checker.examine(route, raw)
    assert list(examination.crashed) == []
    assert all(len(warning) <= 512 for warning in examination.warnings)
    if examination.body is None:
        return
    changed = {change.partition("; ")[2].partition("=")[0] for change in examination.repairs}
    before, after = json.loads(raw), json.loads(examination.body)
    if route == Route.GENERATE:
        outer = {k: v for k, v in after.items() if k != "sampling_params"}
        assert repr(outer) == repr({k: v for k, v in before.items() if k != "sampling_params"})
        before, after = before["sampling_params"], after["sampling_params"]
    assert changed
    assert set(after) - set(before) <= changed
    assert all(repr(after[name]) == repr(before[name]) for name in set(before) - changed)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_repaired_needs_no_repair(version: str) -> None:
    checker = RequestChecker(served_by_command(COMMAND, version, MODEL), policy=_EVERYTHING)
    body = b'{"token_ids": [1, 2], "sampling_params": {"max_tokens": 99, "seed": 1}}'
    first = checker.examine(Route.GENERATE, body)
    assert len(first.repairs) == 2
    assert first.body is not None
    again = checker.examine(Route.GENERATE, first.body)
    assert (again.body, again.findings) == (None, [])


def test_what_a_client_sends_is_neither_kept_nor_sent_back_whole() -> None:
    checker = RequestChecker(served_by_command("vllm serve m"))
    tracemalloc.start()
    try:
        for i in range(20):
            long = f"{i}" * 200_000
            body = json.dumps({"prompt": "a", long: 1, "model": long}).encode()
            examination = checker.examine(Route.COMPLETIONS, body)
            assert len(json.dumps(examination.refusal)) < 5000
            del long, body, examination
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000
