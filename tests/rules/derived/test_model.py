"""What a config.json says, read as vLLM and its configuration classes read it.

The values were compared with real vLLM's (`python -m lab.engine_values`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.proposal.proposal import Hardware
from app.rules.derived.model import (
    checkpoint_quantization,
    derived_max_model_len,
    has_ability,
    head_size,
    hf_text_config,
    hidden_size,
    is_encoder_decoder,
    is_moe,
    max_model_len,
    model_class,
    model_dtype,
    num_attention_heads,
    num_experts,
    num_kv_heads,
    num_layers,
    quantization_method,
    runner_type,
    sliding_window,
    text_value,
    uses_mla,
    vocab_size,
)
from app.serve_config.serve_config import Abstain, ServeConfig
from tests.rules.derived.deriving import H100, LLAMA, config_of

GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152},
}
MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "n_routed_experts": 256,
}


@pytest.mark.parametrize(
    ("fact", "model", "value"),
    [
        (num_attention_heads, LLAMA, 32),
        (num_kv_heads, LLAMA, 8),
        (num_kv_heads, {"model_type": "llama", "num_attention_heads": 40}, 40),
        (num_kv_heads, {"model_type": "mistral"}, 8),
        (num_layers, {"model_type": "gpt2", "n_layer": 24}, 24),
        (hidden_size, {"model_type": "gpt2", "n_embd": 1600}, 1600),
        (vocab_size, {"model_type": "gpt2"}, 50257),
        (head_size, LLAMA, 128),
        (head_size, {**LLAMA, "head_dim": 64}, 64),
        (head_size, MLA, 576),
        (head_size, {"model_type": "mamba"}, 0),
        (num_experts, LLAMA, 0),
        (num_experts, {"model_type": "mixtral"}, 8),
        (num_experts, MLA, 256),
        (uses_mla, MLA, True),
        (uses_mla, LLAMA, False),
        (sliding_window, {"model_type": "mistral"}, 4096),
        (sliding_window, {"model_type": "qwen2", "sliding_window": 131072}, None),
        (
            sliding_window,
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True},
            4096,
        ),
        (sliding_window, GEMMA3, 1024),
        (num_layers, GEMMA3, 34),
        (num_kv_heads, GEMMA3, 4),
        (is_encoder_decoder, {"model_type": "whisper"}, True),
        (is_encoder_decoder, LLAMA, False),
    ],
)
def test_a_fact_is_in_config_json_or_its_class(
    fact: Callable[[ServeConfig], Any], model: dict[str, Any], value: object
) -> None:
    assert fact(config_of(model=model)) == value


@pytest.mark.parametrize("fact", [num_attention_heads, num_layers, vocab_size])
def test_what_an_unknown_class_leaves_out_is_not_guessed(
    fact: Callable[[ServeConfig], Any],
) -> None:
    with pytest.raises(Abstain):
        fact(config_of(model={"model_type": "our_own", "architectures": ["OurOwn"]}))
    with pytest.raises(Abstain):
        fact(config_of())


def test_overrides_count_and_nested_ones_are_merged() -> None:
    config = config_of("--hf-overrides '{\"num_attention_heads\": 7}'", LLAMA)
    assert num_attention_heads(config) == 7
    config = config_of('--hf-overrides \'{"text_config": {"num_hidden_layers": 2}}\'', GEMMA3)
    assert (num_layers(config), hidden_size(config)) == (2, 2560)


def test_a_part_of_a_part_is_found() -> None:
    model = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"vocab_size": 9}}}
    config = config_of(model=model)
    assert hf_text_config(config) == {"vocab_size": 9}
    assert text_value(config, "vocab_size") == 9


@pytest.mark.parametrize(
    ("model", "options", "version", "limit"),
    [
        (LLAMA, "", "0.32.0", 8192),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "", "0.32.0", 16384),
        ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "", "0.32.0", 16384),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "", "0.32.0", 8192),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "", "0.32.0", 8192),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "", "0.29.0", 32768),
        ({"model_type": "mistral"}, "--disable-sliding-window", "0.32.0", 4096),
        ({**LLAMA, "model_max_length": 4096}, "", "0.32.0", 4096),
        ({"model_type": "mamba"}, "", "0.32.0", None),
    ],
)
def test_the_longest_sequence_follows_vllm(
    model: dict[str, Any], options: str, version: str, limit: int | None
) -> None:
    config = config_of(options, model, version=version)
    assert derived_max_model_len(config).limit == limit
    assert max_model_len(config) == (limit or 2048)


def test_a_requested_length_counts_and_auto_does_not() -> None:
    assert max_model_len(config_of("--max-model-len 4k", LLAMA)) == 4000
    assert max_model_len(config_of("--max-model-len auto", LLAMA)) == 8192
    assert not derived_max_model_len(config_of("", LLAMA)).allows(8193)


@pytest.mark.parametrize(
    ("options", "model", "gpu", "dtype"),
    [
        ("", LLAMA, "H100", "bfloat16"),
        ("", LLAMA, "Tesla T4", "float16"),
        ("", {**LLAMA, "torch_dtype": "float32"}, "H100", "bfloat16"),
        ("", {**LLAMA, "dtype": "float16"}, "cpu", "float16"),
        ("--dtype half", LLAMA, "H100", "float16"),
        ("--runner pooling", {**LLAMA, "torch_dtype": "float32"}, "H100", "float16"),
        ("", {"model_type": "gemma2", "dtype": "float16"}, "H100", "bfloat16"),
    ],
)
def test_the_dtype_follows_checkpoint_and_machine(
    options: str, model: dict[str, Any], gpu: str, dtype: str
) -> None:
    model = {"architectures": ["LlamaForCausalLM"], **model}
    assert model_dtype(config_of(options, model, Hardware(gpu))) == dtype


def test_a_dtype_that_nobody_names_is_not_guessed() -> None:
    model = {k: v for k, v in LLAMA.items() if k != "torch_dtype"}
    with pytest.raises(Abstain):
        model_dtype(config_of(model=model, hardware=H100))


@pytest.mark.parametrize(
    ("architecture", "kind", "options", "taken"),
    [
        ("LlamaForCausalLM", "llama", "", "LlamaForCausalLM"),
        ("Qwen2ForSequenceClassification", "qwen2", "", "Qwen2ForCausalLM"),
        ("HeliumForCausalLM", "helium", "", "TransformersForCausalLM"),
        ("LlamaForCausalLM", "llama", "--model-impl transformers", "TransformersForCausalLM"),
    ],
)
def test_the_class_whose_abilities_count(
    architecture: str, kind: str, options: str, taken: str
) -> None:
    config = config_of(options, {"architectures": [architecture], "model_type": kind})
    assert model_class(config) == taken
    assert has_ability(config, "supports_pp")


def test_a_class_that_is_not_known_has_no_known_abilities() -> None:
    config = config_of(model={"architectures": ["OurOwnForCausalLM"], "model_type": "our_own"})
    with pytest.raises(Abstain):
        has_ability(config, "supports_pp")
    assert runner_type(config) == "generate"


@pytest.mark.parametrize(
    ("quantization", "method"),
    [
        ({"quant_method": "GPTQ", "bits": 4}, "gptq"),
        ({"quant_method": "compressed_tensors"}, "compressed-tensors"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "modelopt"),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}},
            "modelopt_fp4",
        ),
    ],
)
def test_the_checkpoint_names_its_quantisation(quantization: dict[str, Any], method: str) -> None:
    found = checkpoint_quantization(config_of(model={"quantization_config": quantization}))
    assert found is not None
    assert found["quant_method"] == method


@pytest.mark.parametrize(
    ("options", "quantization", "gpu", "method"),
    [
        ("", {"quant_method": "awq"}, "H100", "auto_awq"),
        ("--quantization awq_marlin", {"quant_method": "awq"}, "H100", "auto_awq"),
        ("", {"quant_method": "awq"}, "cpu", "awq"),
        ("", {"quant_method": "gptq"}, "cpu", "auto_gptq"),
        ("--quantization FP8", None, "H100", "fp8"),
        ("--quantization fp8", {"quant_method": "gptq"}, "H100", "fp8"),
        ("", {"quant_method": "compressed-tensors"}, "H100", "compressed-tensors"),
        ("", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "H100", "modelopt_fp4"),
        ("", None, "H100", None),
    ],
)
def test_the_method_of_quantisation_that_vllm_settles_on(
    options: str, quantization: dict[str, Any] | None, gpu: str, method: str | None
) -> None:
    model = LLAMA if quantization is None else {**LLAMA, "quantization_config": quantization}
    assert quantization_method(config_of(options, model, Hardware(gpu))) == method


def test_experts_make_a_mixture() -> None:
    assert is_moe(config_of(model=MLA))
    assert not is_moe(config_of(model=LLAMA))
    assert checkpoint_quantization(config_of(model=LLAMA)) is None


# As the authors publish it: without a part for the text model. vLLM 0.32.0 refuses `-tp 8` and
# 200,000 tokens with it, and takes `-tp 7` and 100,000.
QWEN_VL: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "max_position_embeddings": 128000,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "torch_dtype": "bfloat16",
    "vision_config": {"depth": 32, "hidden_size": 1280},
    "vocab_size": 152064,
}


@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_the_whole_has_the_text_models_keys_where_the_class_takes_them(version: str) -> None:
    config = config_of(model=QWEN_VL, version=version)
    assert (num_attention_heads(config), num_layers(config), num_kv_heads(config)) == (28, 28, 4)
    assert max_model_len(config) == 128000
    assert text_value(config, "model_type") == "qwen2_5_vl_text"
    # Another class does not take them: its text model has its own defaults.
    other = {**QWEN_VL, "model_type": "qwen3_vl"}
    assert num_layers(config_of(model=other, version=version)) == 32


def test_a_key_that_is_null_has_no_default() -> None:
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    assert sliding_window(config_of(model=mistral)) == 4096
    assert sliding_window(config_of(model={**mistral, "sliding_window": None})) is None
