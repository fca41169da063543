from __future__ import annotations

from typing import Any

import pytest

from app.serve_config.serve_config import Abstain, Origin, Unresolved
from app.verdict.fix import ReplaceArgument, SetFlag
from tests.serve_config.reading import (
    VERSIONS,
    config_of,
    errors,
    only,
    read,
    read_members,
    rules,
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        ("--max-model-len 2048", "max_model_len", 2048),
        ("--max_model_len=2k", "max_model_len", 2000),
        ("--max-model-len 2K", "max_model_len", 2048),
        ("--max-model-len auto", "max_model_len", -1),
        ("--max-num-batched-tokens 1.5k", "max_num_batched_tokens", 1500),
        ("-tp 2", "tensor_parallel_size", 2),
        ("-tp=2", "tensor_parallel_size", 2),
        ("--tensor-parallel 2", "tensor_parallel_size", 2),
        ("-O3", "optimization_level", "3"),
        ("-O 2", "optimization_level", "2"),
        ("-O=1", "optimization_level", "1"),
        ("--return-sampling-mask", "return_sampling_mask", True),
        ("--no-return-sampling-mask", "return_sampling_mask", False),
        ("--enforce-eager --no-enforce-eager", "enforce_eager", False),
        ("--max-logprobs=-1", "max_logprobs", -1),
        ("--max-logprobs -1", "max_logprobs", -1),
        ("--served-model-name a b", "served_model_name", ["a", "b"]),
        ("--served-model-name a --served-model-name b", "served_model_name", ["b"]),
        ("--middleware a.b --middleware c.d", "middleware", ["a.b", "c.d"]),
        ("--hf-token", "hf_token", True),
        ("--hf-token x", "hf_token", "x"),
        ("--hf-config-path None", "hf_config_path", None),
        ("--hf-overrides '{\"a\": 1}'", "hf_overrides", {"a": 1}),
        ("-cc.mode=3", "compilation_config.mode", 3),
        ("-cc.cudagraph_mode none", "compilation_config.cudagraph_mode", "none"),
        ("-cc.custom_ops+ none", "compilation_config.custom_ops", ["none"]),
        ("-cc.custom_ops+=+a,-b", "compilation_config.custom_ops", ["+a", "-b"]),
        (
            "--compilation-config.pass_config.fuse_norm_quant=true",
            "compilation_config.pass_config",
            {"fuse_norm_quant": True},
        ),
        (
            "-cc '{\"max_cudagraph_capture_size\": 1k}'",
            "compilation_config.max_cudagraph_capture_size",
            1000,
        ),
        ("--lora-modules a=b", "lora_modules", [{"name": "a", "path": "b"}]),
        ("--moe-backend DEEP-GEMM", "moe_backend", "deep_gemm"),
        ("--port 1 -- ", "port", 1),
        ("--gpu-memory-utilization 1", "gpu_memory_utilization", 1.0),
        ("--block-size 1", "block_size", 1),
    ],
)
def test_values_are_those_that_vllm_reads(version: str, words: str, dest: str, value: Any) -> None:
    resolution = read(f"vllm serve m {words}", version)
    config = config_of(resolution)
    assert config[dest] == value
    assert type(config[dest]) is type(value)
    assert config.given(dest)
    assert config["model"] == "m"
    assert errors(resolution) == []


def test_a_default_has_no_place_and_a_given_value_has_one() -> None:
    config = config_of(read("vllm serve m --port 1 --port 2"))
    port, seed = config.setting("port"), config.setting("seed")
    assert port is not None
    assert seed is not None
    assert (port.value, port.origin, str(port.location)) == (2, Origin.ARGV, "command:1:30")
    assert [str(place) for place in port.overridden] == ["command:1:21"]
    assert (seed.value, seed.origin, seed.location) == (0, Origin.DEFAULT, None)


@pytest.mark.parametrize(
    ("words", "rule", "column"),
    [
        ("m --enable-return-sampling-mask", "cli-unknown-flag", 14),
        ("m --max-num 4", "cli-ambiguous-flag", 14),
        ("m --max-model 4", "cli-abbreviated-flag", 14),
        ("m --port", "cli-missing-value", 14),
        ("m --port --seed 1", "cli-missing-value", 14),
        ("m --served-model-name --seed 1", "cli-missing-value", 14),
        ("--seed 1 --model", "cli-missing-value", 21),
        ("m --enforce-eager=true", "cli-unexpected-value", 14),
        ("m --enforce-eager true", "cli-unexpected-value", 30),
        ("--enforce-eager true m", "cli-unexpected-value", 28),
        ("m --dtype bf16", "cli-invalid-choice", 22),
        ("m --port x", "cli-invalid-value", 21),
        ("m --max-model-len 1.5K", "cli-invalid-value", 30),
        pytest.param(
            f"m --max-model-len {'9' * 4299}K", "cli-invalid-value", 30, id="long-product"
        ),
        pytest.param(
            f"m --max-model-len {'9' * 4301}K", "cli-invalid-value", 30, id="long-integer"
        ),
        pytest.param(
            f"m --profiler-config '{{\"x\": {'9' * 4301}K}}'", "cli-invalid-value", 32, id="in-json"
        ),
        ("m --profiler-config null", "cli-invalid-value", 32),
        ("m --speculative-config '{method: mtp}'", "cli-invalid-value", 35),
        ('m --lora-modules \'{"name": "a"}\'', "cli-invalid-value", 29),
        ("m --max-model-len 32k", "cli-decimal-suffix", 30),
        ("m other", "cli-extra-argument", 14),
        ("m --model other", "cli-extra-argument", 12),
        ("--model m", "cli-model-flag", 12),
        ("--served-model-name m", "cli-served-name-without-model", 12),
        ("m --seed 1 --seed 2", "cli-repeated-flag", 21),
        ("m --compilation-config '{}' -cc.mode=3", "cli-json-overwritten", 35),
        ("m --gpu-memory-utilization -0.5", "cli-dotted-value", 39),
        ("m -cc.mode", "cli-dotted-value", 14),
        ("m --help", "cli-help", 14),
        ("m --config=c.yaml", "cli-config-equals", 14),
        ("m --config", "cli-config-usage", 14),
        ("m --config c.json", "cli-config-usage", 23),
        ("m --max-logprobs -2", "max-logprobs-range", 29),
        ("m --gpu-memory-utilization 1.5", "value-out-of-range", 39),
        ('m --kv-transfer-config \'{"kv_rolee": "kv_both"}\'', "unknown-key", 35),
        ('m --kv-transfer-config \'{"kv_role": "kv_all"}\'', "invalid-field-value", 35),
    ],
)
def test_a_finding_stands_at_the_word_that_causes_it(words: str, rule: str, column: int) -> None:
    found = next(f for f in read(f"vllm serve {words}").findings if f.rule == rule)
    assert found.location is not None
    assert (found.location.line, found.location.column) == (1, column)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("m --xyz 1", "unrecognized arguments: --xyz 1"),
        ("m --port", "argument --port: expected one argument"),
        ("m --served-model-name", "argument --served-model-name: expected at least one argument"),
        (
            "m --enforce-eager=1",
            "argument --enforce-eager/--no-enforce-eager: ignored explicit argument '1'",
        ),
        ("m --port x", "argument --port: invalid int value: 'x'"),
        (
            "m --chat-template-content-format x",
            (
                "argument --chat-template-content-format: invalid choice: 'x' "
                "(choose from 'auto', 'openai', 'string')"
            ),
        ),
        ("m --api-server-count 1.5", "argument --api-server-count/-asc: invalid int value: '1.5'"),
        ("m --max-logprobs -2", "Input should be greater than or equal to -1"),
        (
            "m --enable-auto-tool-choice",
            "Error: --enable-auto-tool-choice requires --tool-call-parser",
        ),
    ],
)
def test_vllm_s_own_words_are_given_along(words: str, message: str) -> None:
    assert [f.engine_message for f in errors(read(f"vllm serve {words}"))] == [message]


def test_a_misspelt_flag_has_a_fix_that_keeps_its_value() -> None:
    found = only(read("vllm serve m --max-modle-len=4"), "cli-unknown-flag")
    assert found.fix is not None
    assert found.fix.edits == (ReplaceArgument(1, "--max-model-len=4"),)
    assert found.fix.safe


def test_a_suggestion_that_takes_a_value_where_none_is_given_is_not_safe() -> None:
    found = only(read("vllm serve m --enforce-eagr 4"), "cli-unknown-flag")
    assert found.fix is not None
    assert not found.fix.safe


UTILIZATION = SetFlag("gpu_memory_utilization", 1)


@pytest.mark.parametrize(
    ("options", "rule", "nearest"),
    [
        ("--max-logprobs -2", "max-logprobs-range", SetFlag("max_logprobs", -1)),
        ("--block-size 0", "value-out-of-range", SetFlag("block_size", 1)),
        ("--gpu-memory-utilization 1.5", "value-out-of-range", UTILIZATION),
        ("--gpu-memory-utilization inf", "value-out-of-range", UTILIZATION),
        ("--gpu-memory-utilization nan", "value-out-of-range", None),
        ("--gpu-memory-utilization 0", "value-out-of-range", None),
    ],
)
def test_a_value_out_of_range_is_mended_with_the_nearest_allowed_where_there_is_one(
    options: str, rule: str, nearest: SetFlag | None
) -> None:
    fix = only(read(f"vllm serve m {options}"), rule).fix
    assert (fix is None) if nearest is None else (fix is not None and fix.edits == (nearest,))
    assert fix is None or not fix.safe


def test_none_in_any_case_is_no_reasoning_parser_from_0_33_on() -> None:
    text = "vllm serve m --reasoning-parser None"
    assert config_of(read(text, "0.33.0"))["reasoning_parser"] == ""


def test_all_that_is_wrong_is_told_at_once() -> None:
    resolution = read("vllm serve m --xyz --port x --dtype bf16 --max-num 3 --max-logprobs -2")
    assert rules(resolution) == {
        "cli-unknown-flag",
        "cli-invalid-value",
        "cli-invalid-choice",
        "cli-ambiguous-flag",
        "max-logprobs-range",
    }


def test_a_value_that_cannot_be_read_makes_rules_about_it_abstain() -> None:
    config = config_of(read("vllm serve m --port x --seed $SEED"))
    for dest in ("port", "seed"):
        with pytest.raises(Abstain):
            config[dest]


def test_a_variable_inside_json_leaves_only_its_own_key_open() -> None:
    config = config_of(
        read('vllm serve m --speculative-config "{\\"method\\": \\"mtp\\", \\"model\\": \\"$D\\"}"')
    )
    assert config["speculative_config.method"] == "mtp"
    with pytest.raises(Abstain, match=r"\$D"):
        config["speculative_config.model"]


def test_words_that_may_hold_options_leave_all_defaults_open() -> None:
    resolution = read("vllm serve m --port 1 $EXTRA")
    config = config_of(resolution)
    assert only(resolution, "shell-unresolved-words").undecided
    assert config["port"] == 1
    with pytest.raises(Abstain, match=r"\$EXTRA"):
        config["seed"]


def test_a_config_file_that_is_not_given_leaves_all_defaults_open() -> None:
    resolution = read("vllm serve m --config serve.yaml --port 1")
    config = config_of(resolution)
    assert only(resolution, "yaml-file-not-given").undecided
    assert config["port"] == 1
    assert config.settings["seed"].value == Unresolved((), "the contents of serve.yaml")


def yaml(text: str, *words: str) -> Any:
    return read_members(args=["m", "--config", "c.yaml", *words], files={"c.yaml": text})


@pytest.mark.parametrize(
    ("text", "dest", "value"),
    [
        ("max-model-len: 2048", "max_model_len", 2048),
        ("max_model_len: 2k", "max_model_len", 2000),
        ("max-model: 2048", "max_model_len", 2048),
        ("enforce-eager: on", "enforce_eager", True),
        ("no-enforce-eager: true", "enforce_eager", False),
        ("served-model-name: [a, 1]", "served_model_name", ["a", "1"]),
        ("compilation-config: {mode: 3}", "compilation_config.mode", 3),
        ("compilation-config.mode: 3", "compilation_config.mode", 3),
        ("hf-config-path: null", "hf_config_path", None),
    ],
)
def test_a_config_file_gives_settings(text: str, dest: str, value: Any) -> None:
    resolution = yaml(text)
    config = config_of(resolution)
    assert errors(resolution) == []
    assert config[dest] == value
    place = config.place(dest)
    assert place is not None
    assert (place.source, place.line) == ("c.yaml", 1)
    setting = config.setting(dest)
    assert setting is not None
    assert setting.origin is Origin.CONFIG_FILE


@pytest.mark.parametrize(
    ("text", "rule", "place"),
    [
        ("enforce-eager: false", "yaml-false-ignored", "c.yaml:1:16"),
        ("enforce-eager: 'true'", "cli-unexpected-value", "c.yaml:1:16"),
        ("max-modle-len: 1", "yaml-unknown-key", "c.yaml:1:1"),
        ("seed: 1\nseed: 2", "yaml-repeated-key", "c.yaml:1:1"),
        ("served-model-name: []", "yaml-empty-list", "c.yaml:1:20"),
        ("8000: x", "yaml-invalid-key", "c.yaml:1:1"),
        ("compilation-config: {a: 2001-01-01}", "yaml-invalid-key", "c.yaml:1:21"),
        ("- a", "yaml-not-a-mapping", "c.yaml:1:1"),
        ("a: b: c", "yaml-unreadable", "c.yaml:1:5"),
        ("max-logprobs: true", "cli-missing-value", "c.yaml:1:1"),
        ("seed: null", "cli-invalid-value", "c.yaml:1:7"),
        ("compilation-config:\n  cudagraph-mode: NONE", "unknown-key", "c.yaml:2:3"),
        ("max-logprobs: -2", "max-logprobs-range", "c.yaml:1:15"),
    ],
)
def test_a_finding_about_a_file_stands_in_the_file(text: str, rule: str, place: str) -> None:
    found = next(f for f in yaml(text).findings if f.rule == rule)
    assert str(found.location) == place


def test_the_command_line_overrides_the_file_and_says_so() -> None:
    resolution = yaml("seed: 1\nport: 2", "--seed", "3")
    config = config_of(resolution)
    assert (config["seed"], config["port"]) == (3, 2)
    assert str(only(resolution, "yaml-overridden").location) == "c.yaml:1:7"


@pytest.mark.parametrize(
    "args", [["m", "--port", "1", "--config", "c.yaml"], ["m", "--config", "c.yaml", "--port", "1"]]
)
def test_the_command_line_wins_on_either_side_of_the_file(args: list[str]) -> None:
    resolution = read_members(args=args, files={"c.yaml": "port: 2"})
    assert config_of(resolution)["port"] == 1


def test_json_in_a_file_is_checked_although_the_command_line_replaces_it() -> None:
    assert rules(yaml("compilation-config: {x: 1}", "-cc.mode=0")) >= {"unknown-key"}


def test_a_file_alone_is_served_with_its_model() -> None:
    resolution = read_members(config_yaml="model: org/m\nport: 1\n")
    config = config_of(resolution)
    assert (config["model"], config["port"]) == ("org/m", 1)
    assert resolution.findings == ()


def test_a_file_alone_without_a_model_is_warned_about() -> None:
    assert rules(read_members(config_yaml="port: 1\n")) == {"yaml-no-model"}


def test_a_command_with_a_file_needs_a_model_somewhere() -> None:
    members: dict[str, Any] = {"args": ["--config", "c.yaml", "m"], "files": {"c.yaml": "port: 1"}}
    assert rules(read_members(**members)) == {"cli-config-usage"}


def test_the_module_entry_point_honours_false_and_takes_model_as_a_flag() -> None:
    text = "python -m vllm.entrypoints.openai.api_server --model m --config c.yaml"
    command = f"cat > c.yaml <<'E'\nenable-prefix-caching: false\nE\n{text}"
    resolution = read(command)
    config = config_of(resolution)
    assert config["enable_prefix_caching"] is False
    assert config["model"] == "m"
    assert resolution.findings == ()


def test_no_model_is_warned_about_with_the_option_that_took_it() -> None:
    found = only(read("vllm serve --api-key a m"), "cli-no-model")
    assert "--api-key has taken 'm'" in found.message


def test_unseen_options_of_another_program_are_left_open() -> None:
    resolution = read("vllm serve m --omni")
    assert resolution.config is None
    assert only(resolution, "cli-omni").undecided


def test_the_module_entry_point_knows_nothing_of_omni() -> None:
    module = "python3 -m vllm.entrypoints.openai.api_server --model m"
    assert rules(read(f"{module} --omni")) == {"cli-unknown-flag"}


@pytest.mark.parametrize("words", [["vllm", "serve", "m"], ["serve", "m"]])
def test_arguments_that_begin_too_early_are_recognised(words: list[str]) -> None:
    first, *_ = errors(read_members(args=words))
    assert first.rule == "cli-extra-argument"
    assert f"leave {words[0]!r} out" in first.message


@pytest.mark.parametrize(
    ("kwargs", "dest", "value"),
    [
        ({"model": "m"}, "model", "m"),
        ({"max-logprobs": 5}, "max_logprobs", 5),
        ({"max_logprobs": "5"}, "max_logprobs", "5"),
        ({"compilation_config": {"mode": 3}}, "compilation_config.mode", 3),
        ({"enable_scale_out": True}, "enable_scale_out", True),
    ],
)
def test_engine_kwargs_give_settings(kwargs: dict[str, Any], dest: str, value: Any) -> None:
    resolution = read_members(config=kwargs)
    assert errors(resolution) == []
    assert config_of(resolution)[dest] == value


@pytest.mark.parametrize(
    ("kwargs", "rule", "pointer"),
    [
        ({"max_logprob": 5}, "kwargs-unknown", "/config/max_logprob"),
        ({"a/b": 5}, "kwargs-unknown", "/config/a~1b"),
        ({"enable_scale_out": True}, "kwargs-serve-only", "/config/enable_scale_out"),
        ({"max-logprobs": 5, "max_logprobs": 6}, "cli-repeated-flag", "/config/max-logprobs"),
        ({"max_logprobs": -2}, "max-logprobs-range", "/config/max_logprobs"),
        ({"max_logprobs": "many"}, "invalid-field-value", "/config/max_logprobs"),
        ({"enforce_eager": "maybe"}, "invalid-field-value", "/config/enforce_eager"),
        (
            {"compilation_config": {"pass_config": {"x": 1}}},
            "unknown-key",
            "/config/compilation_config/pass_config/x",
        ),
    ],
)
def test_a_finding_about_kwargs_has_a_pointer(
    kwargs: dict[str, Any], rule: str, pointer: str
) -> None:
    found = only(read_members(config=kwargs), rule)
    assert found.location is not None
    assert found.location.pointer == pointer


def test_a_misspelt_key_in_json_has_a_fix() -> None:
    found = only(read_members(config={"speculative_config": {"metod": "mtp"}}), "unknown-key")
    assert found.fix is not None
    assert SetFlag("speculative_config.method", "mtp") in found.fix.edits


@pytest.mark.parametrize(
    ("kwargs", "meant"),
    [
        ({"max_logprob": 5}, "write max_logprobs"),
        ({"max_logprob": "many"}, None),
        ({"device": "cuda"}, None),
    ],
)
def test_an_argument_is_renamed_to_one_that_takes_its_value(
    kwargs: dict[str, Any], meant: str | None
) -> None:
    found = only(read_members(config=kwargs), "kwargs-unknown")
    assert (found.fix and found.fix.description) == meant


def test_a_warning_never_hides_an_error_behind_it() -> None:
    words = " ".join(["--max-model 4"] * 200)
    assert {f.rule for f in errors(read(f"vllm serve m {words} --xyz"))} == {"cli-unknown-flag"}
