"""Each request rule against its own examples, and at its edges."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from app.catalogue import CatalogueLibrary
from app.request_rules.checker import RequestChecker
from app.request_rules.declarations import DECLARATIONS, RULES
from app.request_rules.policy import Action, Policy
from app.request_rules.request import Route, read_request
from app.request_rules.rule import RequestExample
from app.request_rules.served import Served, unknown_server
from app.verdict.finding import Severity
from tests.request_rules.serving import served_by_command

LIBRARY = CatalogueLibrary()
MASKS = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
MASKS_ONLY_VLLM = f"{MASKS} --generation-config vllm"


def _served(command: str, version: str = "0.32.0", model: dict[str, Any] | None = None) -> Served:
    return served_by_command(command, version, model)


def _rules(served: Served, route: str, body: object, *, off: bool = False) -> list[str]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = read_request(Route(route), raw, served.catalogue.requests)
    assert request is not None
    on = Policy({rule.declaration.id: Action.WARN for rule in RULES if not rule.on} if off else {})
    findings, crashed = RequestChecker(served, policy=on).findings(request)
    assert crashed == []
    return [finding.rule for finding in findings]


def _generate(served: Served, **parameters: object) -> list[str]:
    return _rules(served, Route.GENERATE, {"token_ids": [1], "sampling_params": parameters})


def _examples(kind: str) -> list[Any]:
    return [
        pytest.param(declaration, example, version, id=f"{declaration.id}-{version}")
        for declaration in DECLARATIONS
        for example in getattr(declaration, kind)
        for version in LIBRARY.versions
        if version in SpecifierSet(example.versions)
        and declaration.applies_to(LIBRARY.get(version).version)
    ]


@pytest.mark.parametrize(("declaration", "example", "version"), _examples("bad"))
def test_bad_examples_are_found(declaration: Any, example: RequestExample, version: str) -> None:
    served = _served(example.serve, version, example.model_config)
    assert declaration.id in _rules(served, example.route, example.body, off=True)


@pytest.mark.parametrize(("declaration", "example", "version"), _examples("good"))
def test_good_examples_are_not(declaration: Any, example: RequestExample, version: str) -> None:
    served = _served(example.serve, version, example.model_config)
    assert declaration.id not in _rules(served, example.route, example.body, off=True)


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda d: d.id)
def test_every_rule_has_examples_a_source_and_a_remedy(declaration: Any) -> None:
    assert declaration.bad
    assert declaration.good
    assert declaration.source.count("::") == 1
    assert declaration.remedy
    assert declaration.explanation


def test_rule_ids_are_unique() -> None:
    assert len({rule.declaration.id for rule in RULES}) == len(RULES)


# temperature, after SamplingParams.__post_init__


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1, "0", False])
def test_greedy_is_refused(value: object) -> None:
    served = _served(MASKS)
    assert _generate(served, temperature=value, top_k=5) == ["sampling-mask-temperature"]


@pytest.mark.parametrize("value", [1e-9, 0.01, 1, 2, True, "0.5", None, "warm", [0], float("nan")])
def test_what_samples_or_what_vllm_refuses_itself_passes(value: object) -> None:
    assert _generate(_served(MASKS), temperature=value, top_k=5) == []


def test_a_missing_temperature_is_one() -> None:
    assert _generate(_served(MASKS), top_k=5) == []


# top_k


@pytest.mark.parametrize("value", [0, -1, -7, "0", 0.0, False])
def test_no_top_k_is_refused(value: object) -> None:
    assert _generate(_served(MASKS), top_k=value) == ["sampling-mask-top-k"]


@pytest.mark.parametrize("value", [1, 5, "5", 5.0, True, 10**6, None, 5.5, "many", {}])
def test_any_top_k_or_what_vllm_refuses_itself_passes(value: object) -> None:
    assert _generate(_served(MASKS), top_k=value) == []


def test_generate_knows_no_server_defaults() -> None:
    override = MASKS + """ --override-generation-config '{"top_k": 20}'"""
    assert _generate(_served(override)) == ["sampling-mask-top-k"]


OPENAI = [Route.COMPLETIONS, Route.CHAT, Route.RESPONSES, Route.MESSAGES]


@pytest.mark.parametrize("route", OPENAI)
@pytest.mark.parametrize(
    ("options", "body", "refused"),
    [
        ("", {}, False),
        ("", {"top_k": None}, False),
        ("", {"top_k": 0}, True),
        ("--generation-config vllm", {}, True),
        ("--generation-config vllm", {"top_k": None}, True),
        ("--generation-config vllm", {"top_k": 3}, False),
        ("""--override-generation-config '{"top_k": 20}'""", {}, False),
        ("""--override-generation-config '{"top_k": 0}'""", {}, True),
        ("""--override-generation-config '{"top_k": null}'""", {}, True),
        ("""--override-generation-config '{"top_k": "x"}'""", {}, False),
        ("""--generation-config vllm --override-generation-config '{"top_k": 2}'""", {}, False),
        ("--generation-config $WHERE", {}, False),
    ],
)
def test_openai_routes_take_top_k_from_the_generation_config(
    route: Route, options: str, body: dict[str, object], refused: bool
) -> None:
    found = _rules(_served(f"{MASKS} {options}"), route, body)
    assert ("sampling-mask-top-k" in found) is refused
    assert "sampling-mask-route" in found


@pytest.mark.parametrize("route", OPENAI)
def test_openai_routes_take_temperature_from_the_generation_config(route: Route) -> None:
    greedy = _served(MASKS + """ --override-generation-config '{"temperature": 0}'""")
    assert "sampling-mask-temperature" in _rules(greedy, route, {"top_k": 5})
    assert "sampling-mask-temperature" not in _rules(greedy, route, {"top_k": 5, "temperature": 1})
    unknown = _served(MASKS)
    assert "sampling-mask-temperature" not in _rules(unknown, route, {"top_k": 5})


@pytest.mark.parametrize("route", [Route.COMPLETIONS, Route.CHAT])
def test_a_beam_search_has_no_top_k_whatever_the_request_says(route: Route) -> None:
    served = _served(MASKS_ONLY_VLLM)
    body = {"prompt": "a", "messages": [], "use_beam_search": True, "top_k": 5, "temperature": 1}
    rule = "sampling-mask-beam-search"
    assert rule in _rules(served, route, body)
    assert rule not in _rules(served, route, {**body, "max_tokens": 0})
    assert rule not in _rules(served, route, {**body, "use_beam_search": False})
    assert rule not in _rules(_served("vllm serve m"), route, body)


@pytest.mark.parametrize(
    ("count", "model", "verdict"),
    [
        (123, {}, None),
        (124, {}, "warning"),
        (127, {}, "warning"),
        # 128 and the one that every model has ended 0.28.0 and 0.32.0.
        (128, {}, "error"),
        (128, {"eos_token_id": 5}, "warning"),
        (127, {"eos_token_id": 1000}, "warning"),
        (128, {"eos_token_id": 1000}, "error"),
        (128, {"eos_token_id": [1000, 1001]}, "error"),
        (128, {"eos_token_id": [1000, 5]}, "error"),
        # generation_config.json may have one of them only.
        (127, {"eos_token_id": [1000, 1001]}, "warning"),
    ],
)
def test_the_end_of_sequence_ids_count_where_they_are_known(
    count: int, model: dict[str, Any], verdict: str | None
) -> None:
    served = served_by_command("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m", model=model)
    body = {"min_tokens": 1, "stop_token_ids": list(range(count))}
    raw = json.dumps({"token_ids": [1], "sampling_params": body}).encode()
    findings = dict(RequestChecker(served).examine(Route.GENERATE, raw).findings)
    assert findings.get("request-stop-token-ids") == verdict


@pytest.mark.parametrize(
    ("count", "eos", "command", "verdict"),
    [
        (125, [1000, 1001], "", None),
        # The tokenizer's own may come to them, and comes to none with `--tokens-only`.
        (126, [1000, 1001], "", "warning"),
        (126, [1000, 1001], "--tokens-only", None),
        (127, [1000, 1001], "", "error"),
        (127, [1000, 1001], "--generation-config vllm", "error"),
        (127, [1000, 1001], "--generation-config /elsewhere", "warning"),
        (127, [1000, 5], "--tokens-only", None),
        (127, 1000, "", "warning"),
        (128, 1000, "", "error"),
        (128, 5, "", "warning"),
        (128, 5, "--tokens-only", None),
        (127, None, "", None),
        (128, None, "", "error"),
        (128, None, "--tokens-only", None),
        (127, "x", "", "warning"),
    ],
)
def test_the_end_of_sequence_ids_of_the_generation_config_are_those_that_count(
    count: int, eos: Any, command: str, verdict: str | None
) -> None:
    served = served_by_command(
        f"VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m {command}",
        model={"eos_token_id": [1000, 1001, 1002]},
        generation={} if eos is None else {"eos_token_id": eos},
    )
    body = {"min_tokens": 1, "stop_token_ids": list(range(count))}
    raw = json.dumps({"token_ids": [1], "sampling_params": body}).encode()
    findings = dict(RequestChecker(served).examine(Route.GENERATE, raw).findings)
    assert findings.get("request-stop-token-ids") == verdict


@pytest.mark.parametrize("command", ["vllm serve m", "vllm serve m --no-return-sampling-mask"])
def test_without_masks_anything_samples(command: str) -> None:
    assert _generate(_served(command), temperature=0) == []


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_the_messages_quote_the_engine(version: str) -> None:
    checker = RequestChecker(_served(MASKS, version))
    body = b'{"token_ids": [1], "sampling_params": {"temperature": 0}}'
    refusal = checker.examine(Route.GENERATE, body).refusal
    assert refusal is not None
    error = refusal["error"]
    assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, "temperature")
    assert error["rule"] == "sampling-mask-temperature"
    assert error["message"].startswith("sampling distribution replay requires temperature > 0")
    first, second = error["errors"]
    assert first["pointer"] == "/sampling_params/temperature"
    assert "requires top_k > 0 to bound sampling mask size" in second["message"]


@pytest.mark.parametrize(
    ("version", "warned"), [("0.28.0", True), ("0.31.0", True), ("0.32.0", False)]
)
def test_streams_without_masks_are_warned_of(version: str, warned: bool) -> None:
    body = b'{"token_ids": [1], "stream": true, "sampling_params": {"top_k": 5}}'
    examination = RequestChecker(_served(MASKS, version)).examine(Route.GENERATE, body)
    assert examination.refusal is None
    assert [w.split(";")[0] for w in examination.warnings] == ["sampling-mask-stream"] * warned


# logprobs


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        (Route.GENERATE, {"sampling_params": {"logprobs": 6}}, "logprobs"),
        (Route.GENERATE, {"sampling_params": {"prompt_logprobs": 6}}, "prompt_logprobs"),
        (Route.COMPLETIONS, {"logprobs": 6}, "logprobs"),
        (Route.COMPLETIONS, {"prompt_logprobs": 6}, "prompt_logprobs"),
        (Route.COMPLETIONS, {"logprobs": 6, "logprob_token_ids": [1]}, None),
        (Route.COMPLETIONS, {"logprobs": 6, "use_beam_search": True}, None),
        (Route.CHAT, {"logprobs": True, "top_logprobs": 6}, "top_logprobs"),
        (Route.CHAT, {"logprobs": False, "top_logprobs": 6}, None),
        (Route.CHAT, {"logprobs": True, "top_logprobs": 6, "logprob_token_ids": [1]}, None),
        (
            Route.RESPONSES,
            {"top_logprobs": 6, "include": ["message.output_text.logprobs"]},
            "top_logprobs",
        ),
        (Route.RESPONSES, {"top_logprobs": 6}, None),
        (Route.RESPONSES, {"top_logprobs": 6, "include": "message.output_text.logprobs"}, None),
        (Route.MESSAGES, {"logprobs": 6, "top_logprobs": 6}, None),
    ],
)
def test_logprobs_are_counted_as_each_route_does(
    route: Route, body: dict[str, object], field: str | None
) -> None:
    checker = RequestChecker(_served("vllm serve m --max-logprobs 5"))
    refusal = checker.examine(route, json.dumps(body).encode()).refusal
    assert (refusal["error"]["param"] if refusal else None) == field
    if refusal:
        assert "greater than max allowed: 5" in refusal["error"]["message"]


@pytest.mark.parametrize(
    ("limit", "vocabulary", "asked", "refused"),
    [
        (20, None, 20, False),
        (20, None, 21, True),
        (20, None, -1, False),
        (20, 1000, -1, True),
        (2000, 1000, -1, False),
        (-1, None, 10**6, False),
        (-1, 1000, 1000, False),
        (-1, 1000, 1001, True),
        (0, None, 0, False),
        (0, None, 1, True),
    ],
)
def test_minus_one_logprobs_is_the_vocabulary_if_known(
    limit: int, vocabulary: int | None, asked: int, refused: bool
) -> None:
    model = None if vocabulary is None else {"text_config": {"vocab_size": vocabulary}}
    served = _served(f"vllm serve m --max-logprobs {limit}", model=model)
    assert ("request-logprobs-limit" in _generate(served, logprobs=asked)) is refused


def test_negative_logprobs_need_no_configuration_to_be_refused() -> None:
    served = unknown_server(LIBRARY.get("0.32.0"))
    assert _generate(served, logprobs=-2) == ["request-logprobs-range"]
    assert _generate(served, logprobs=-1, temperature=0, seed=1, n=10**6) == []


# What ends the engine


@pytest.mark.parametrize(
    ("ids", "vocabulary", "refused"),
    [
        ([-1], None, True),
        ([2**31], None, True),
        ([2**31 - 1], None, False),
        ([1023], 1024, False),
        ([1, 1024], 1024, True),
    ],
)
def test_stop_ids_that_0_28_writes_beside_the_logits(
    ids: list[int], vocabulary: int | None, refused: bool
) -> None:
    """-1 and 2**40 ended 0.28.0; newer versions refuse them."""
    model = None if vocabulary is None else {"vocab_size": vocabulary}
    served = _served("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m", "0.28.0", model)
    found = _generate(served, min_tokens=1, stop_token_ids=ids)
    assert ("request-stop-token-range" in found) is refused
    assert _generate(served, stop_token_ids=ids) == []


def test_rules_about_tables_only_tell_where_the_runner_is_unknown() -> None:
    served = _served("vllm serve m", "0.28.0")
    assert served.runs_v2 is None
    for asked in ({"seed": 2**63}, {"seed": 2**63 - 1, "n": 2}, {"max_tokens": 2**31}):
        body = json.dumps({"token_ids": [1], "sampling_params": asked}).encode()
        examination = RequestChecker(served).examine(Route.GENERATE, body)
        assert examination.refusal is None
        assert "would end the engine" in examination.warnings[0]


def test_a_runner_that_only_the_machine_could_change_is_taken_to_be_v2() -> None:
    assert _served("vllm serve m").runs_v2
    assert not _served("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m").runs_v2


@pytest.mark.parametrize("command", [MASKS, "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m"])
def test_masks_or_the_variable_mean_runner_v2(command: str) -> None:
    assert "request-seed-range" in _generate(_served(command), seed=2**63, top_k=5)


def test_the_v1_runner_takes_such_seeds() -> None:
    served = _served("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m")
    assert _generate(served, seed=2**63) == []


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"seed": 2**63 - 1}, []),
        ({"seed": "9223372036854775808"}, ["request-seed-range"]),
        ({"seed": 2**63, "n": 4}, ["request-seed-range"]),
        ({"seed": 2**63 - 4, "n": 4}, []),
        ({"seed": 2**63 - 3, "n": 4}, ["request-seed-children"]),
        ({"seed": -1, "n": 4}, []),
        ({"allowed_token_ids": list(range(1024))}, []),
        ({"allowed_token_ids": [1] * 1025}, ["request-allowed-token-ids"]),
        ({"allowed_token_ids": [*range(1024), "x"]}, []),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, ["request-logit-bias-size"]),
        ({"logit_bias": {str(i): 1 for i in range(1024)} | {"01": 2}}, []),
        ({"logit_bias": {f"t{i}": 1 for i in range(1025)}}, []),
        ({"logit_bias": {f"{i}.0": 1 for i in range(1025)}}, ["request-logit-bias-size"]),
        ({"logit_bias": {f" {i}\n": 1 for i in range(1025)}}, ["request-logit-bias-size"]),
        ({"logit_bias": {str(i): 1 for i in range(1024)} | {"1.0": 2}}, []),
        ({"min_tokens": 1, "stop_token_ids": list(range(129))}, ["request-stop-token-ids"]),
        # vLLM adds the end-of-sequence ids; 128 and one of those ended 0.32.0.
        ({"min_tokens": 1, "stop_token_ids": list(range(128))}, ["request-stop-token-ids"]),
        ({"min_tokens": 1, "stop_token_ids": list(range(123)) * 2}, []),
        ({"min_tokens": 0, "stop_token_ids": list(range(129))}, []),
        (
            {
                "min_tokens": 1,
                "stop_token_ids": list(range(129)),
                "trace_decode_token_ids": [1],
            },
            [],
        ),
        (
            {
                "min_tokens": 1,
                "stop_token_ids": list(range(129)),
                "trace_decode_token_ids": [],
            },
            ["request-stop-token-ids"],
        ),
        ({"max_tokens": 2**31 - 2}, []),
        ({"max_tokens": 2**31 - 1}, ["request-output-range"]),
        ({"max_tokens": 2**62, "min_tokens": 2**62}, ["request-output-range"]),
        ({"max_tokens": "2147483647"}, ["request-output-range"]),
        ({"max_tokens": None, "min_tokens": 2**31 - 1}, ["request-output-range"]),
    ],
)
def test_requests_that_end_the_engine(parameters: dict[str, object], found: list[str]) -> None:
    assert _generate(_served("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m"), **parameters) == found


@pytest.mark.parametrize(
    ("bias", "refused"),
    [
        ("Infinity", True),
        ("NaN", True),
        ("1e400", True),
        ('"inf"', True),
        ("-Infinity", False),
        ("100", False),
        ('"x"', False),
        ("null", False),
    ],
)
def test_infinite_biases_are_refused_where_nothing_clamps_them(bias: str, refused: bool) -> None:
    parameters = f'{{"top_k": 5, "logit_bias": {{"7": {bias}}}}}'
    found = _rules(_served(MASKS), Route.GENERATE, f'{{"sampling_params": {parameters}}}'.encode())
    assert found == ["request-logit-bias-finite"] * refused
    openai = _rules(_served(MASKS), Route.COMPLETIONS, parameters.encode())
    assert openai == ["sampling-mask-route"]


def test_openai_routes_refuse_large_seeds_themselves_but_not_those_of_children() -> None:
    served = _served(MASKS)
    assert _rules(served, Route.COMPLETIONS, {"seed": 2**63}) == ["sampling-mask-route"]
    body = {"seed": 2**63 - 1, "n": 2}
    assert "request-seed-children" in _rules(served, Route.CHAT, body)


def test_only_generate_limits_n_to_max_num_seqs() -> None:
    served = _served("vllm serve m --max-num-seqs 8")
    assert _generate(served, n=9) == ["request-n-limit"]
    assert _rules(served, Route.COMPLETIONS, {"n": 9}) == []


def test_errors_are_errors_and_warnings_warnings() -> None:
    severities = {d.id: d.severity for d in DECLARATIONS}
    warnings = {name for name, severity in severities.items() if severity is Severity.WARNING}
    assert warnings == {
        "sampling-mask-route",
        "sampling-mask-stream",
        "request-max-tokens-cut",
        "request-prompt-vocabulary",
        "request-seed-missing",
        "request-template-switch",
        "request-tool-parser",
        "request-unknown-key",
    }
