"""The memory estimate against published parameter counts and hand-computed caches."""

from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.memory.estimate import GIB, estimate, weight_bytes
from app.memory.kv_cache import request_bytes
from app.memory.weights import bytes_per_weight, parameters
from app.proposal.envelope import read_envelope
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig
from app.validation import judge
from app.verdict.fix import SetFlag

LIBRARY = CatalogueLibrary()
H100 = {"gpu": "H100-80GB", "count": 8}

LLAMA3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA3_70B = LLAMA3_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
}
MIXTRAL = LLAMA3_8B | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "num_experts": 16,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 65536,
}


def config_of(model: dict[str, Any], *args: str, gpu: Any = H100) -> ServeConfig:
    envelope = read_envelope({"args": ["m", *args], "model_config": model, "hardware": gpu})
    config = resolve(envelope.proposal, LIBRARY.get("0.32.0")).config
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("model", "published"),
    [
        (LLAMA3_8B, 8.03e9),
        (LLAMA3_70B, 70.6e9),
        (MIXTRAL, 46.7e9),
        (DEEPSEEK_V3, 671e9),
        (JAMBA, 51.6e9),
    ],
    ids=["llama3-8b", "llama3-70b", "mixtral", "deepseek-v3", "jamba-mini"],
)
def test_parameters_are_those_the_authors_publish(model: dict[str, Any], published: float) -> None:
    assert parameters(config_of(model)).total == pytest.approx(published, rel=0.005)


def test_the_cache_of_grouped_query_attention() -> None:
    # keys and values x 8 heads x 128 x 2 bytes x 32 layers
    assert request_bytes(config_of(LLAMA3_8B), 1000) == 2 * 8 * 128 * 2 * 32 * 1000
    # Four ranks hold two heads each; sixteen ranks still hold one.
    assert request_bytes(config_of(LLAMA3_8B, "-tp", "4"), 1000) == 2 * 2 * 128 * 2 * 32 * 1000
    assert request_bytes(config_of(LLAMA3_8B, "-tp", "16"), 1000) == 2 * 1 * 128 * 2 * 32 * 1000


def test_the_latent_cache_is_the_same_on_every_rank() -> None:
    for ranks in ("1", "8"):
        bytes_taken = request_bytes(config_of(DEEPSEEK_V3, "-tp", ranks), 1000)
        assert bytes_taken == (512 + 64) * 2 * 61 * 1000


def test_fp8_halves_it() -> None:
    half = request_bytes(config_of(LLAMA3_8B, "--kv-cache-dtype", "fp8"), 1000)
    assert half * 2 == request_bytes(config_of(LLAMA3_8B), 1000)


def test_a_window_bounds_it() -> None:
    model = LLAMA3_8B | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
    }
    config = config_of(model, "--max-num-batched-tokens", "2048")
    per_token = 2 * 8 * 128 * 2 * 32
    assert request_bytes(config, 1000) == per_token * 1000
    assert request_bytes(config, 131072) == per_token * (4096 + 2048)


def test_layers_with_a_state_keep_the_same_however_long() -> None:
    config = config_of(JAMBA)
    # Of 4096 bytes a token, 80 make a page of at least a state; a block has one of four layers.
    state = (4096 * 2) * (3 + 16) * 2
    block = 80 * 4096 * 4
    assert 79 * 4096 < 80 * 4096 >= state
    assert request_bytes(config, 1000) == (13 + 7 * 2) * block  # 7 groups of states, two each
    assert request_bytes(config, 2000) - request_bytes(config, 1000) == 12 * block
    once = config_of(JAMBA, "--no-enable-prefix-caching")
    assert request_bytes(once, 1000) == (13 + 7) * block


@pytest.mark.parametrize(
    ("quantization", "width"),
    [
        ({"quant_method": "awq", "bits": 4}, 0.52),
        ({"quant_method": "gptq", "bits": 8}, 1.0),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
            },
            1.0,
        ),
    ],
)
def test_quantised_weights(quantization: dict[str, Any], width: float) -> None:
    config = config_of(LLAMA3_8B | {"quantization_config": quantization})
    found = bytes_per_weight(config)
    assert found.dense == found.experts == pytest.approx(width, abs=0.001)
    assert found.plain == 2.0


def test_experts_are_shared_out_over_data_parallel_ranks_too() -> None:
    alone = estimate(config_of(MIXTRAL, "-tp", "2")).weights
    spread = estimate(config_of(MIXTRAL, "-tp", "2", "-dp", "4", "--enable-expert-parallel"))
    assert spread.weights < alone / 2.5


def test_the_breakdown_adds_up() -> None:
    found = estimate(config_of(LLAMA3_8B)).as_json()
    parts = found["weights_gib"] + found["margin_gib"] + found["cache_gib"]
    assert parts == pytest.approx(found["allowed_gib"], abs=0.02)
    assert found["request_cache_gib"] == 1.0
    assert found["estimate"] is True


@pytest.mark.parametrize(
    ("args", "gpu"),
    [
        (("--cpu-offload-gb", "10"), H100),
        (("--kv-cache-memory-bytes", "1G"), H100),
        ((), {"gpu": "an unheard-of GPU", "count": 1}),
    ],
)
def test_what_is_not_known_is_not_estimated(args: tuple[str, ...], gpu: Any) -> None:
    with pytest.raises(Abstain):
        estimate(config_of(LLAMA3_8B, *args, gpu=gpu))


def test_the_verdict_warns_with_the_numbers_and_refuses_nothing() -> None:
    body = {
        "args": ["m"],
        "model_config": LLAMA3_70B,
        "hardware": {"gpu": "H100-80GB", "count": 1},
        "vllm_version": "0.32.0",
    }
    (verdict,) = judge(read_envelope(body), LIBRARY)
    (finding,) = [f for f in verdict.findings if f.rule == "memory-weights"]
    assert finding.message.startswith("an estimate: the weights of 70.6e9 parameters take 131.4")
    assert verdict.accepted
    memory = verdict.as_json()["settings"]["derived"]["memory"]
    assert memory["weights_gib"] == pytest.approx(131.4, abs=0.05)


def test_a_request_that_does_not_fit_is_told_with_what_would() -> None:
    body: dict[str, Any] = {
        "args": ["m", "--max-model-len", "8192", "--gpu-memory-utilization", "0.2"],
        "model_config": LLAMA3_8B,
        "hardware": {"gpu": "H100-80GB", "count": 1},
        "vllm_version": "0.32.0",
    }
    (verdict,) = judge(read_envelope(body), LIBRARY)
    found = [f for f in verdict.findings if f.rule == "memory-kv-cache"]
    assert not found  # 16 GiB hold 15 of weights and 1 of cache, just
    body["args"][-1] = "0.19"
    (verdict,) = judge(read_envelope(body), LIBRARY)
    (finding,) = [f for f in verdict.findings if f.rule == "memory-kv-cache"]
    assert 0 < finding.evidence["fits_tokens"] < 8192
    assert finding.evidence["device_gib"] * GIB > 0


VISION: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 896,
        "patch_size": 14,
    },
}


def test_a_tower_counts_and_is_left_out_where_it_is_not_loaded() -> None:
    whole = parameters(config_of(VISION))
    assert whole.towers == pytest.approx(0.42e9, rel=0.01)
    assert whole.uncounted == ()
    for args in (["--language-model-only"], ["--limit-mm-per-prompt", '{"image": 0}']):
        text = parameters(config_of(VISION, *args))
        assert (text.towers, text.uncounted) == (0, ())
        assert text.total == whole.total - whole.towers
    shared, data = (
        weight_bytes(config_of(VISION, "-tp", "4", *args))
        for args in ([], ["--mm-encoder-tp-mode", "data"])
    )
    assert data - shared == pytest.approx(whole.towers * 2 * 3 / 4, rel=1e-6)


def test_a_tower_of_unknown_shape_makes_it_a_lower_bound() -> None:
    tower = {**VISION["vision_config"], "model_type": "some_vision_model"}
    model = VISION | {"vision_config": tower}
    found = estimate(config_of(model, "--max-num-batched-tokens", "8192"))
    assert found.uncounted == ("vision_config",)
    assert found.as_json()["not_counted"] == ["vision_config"]
    body: dict[str, Any] = {
        "args": ["m", "--max-num-batched-tokens", "8192"],
        "model_config": model,
        "hardware": {"gpu": "H100-80GB", "count": 1},
        "vllm_version": "0.32.0",
    }
    (verdict,) = judge(read_envelope(body), LIBRARY)
    assert "memory-weights" in {one.rule for one in verdict.not_checked}
    body["hardware"]["memory_gib"] = 4  # what is counted is too much already
    (verdict,) = judge(read_envelope(body), LIBRARY)
    assert "memory-weights" in {finding.rule for finding in verdict.findings}


MAMBA: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 64,
    "hidden_size": 4096,
    "n_groups": 8,
    "num_heads": 128,
    "num_hidden_layers": 64,
    "state_size": 128,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32768,
}


def test_a_model_of_states_alone() -> None:
    config = config_of(MAMBA)
    assert parameters(config).total == pytest.approx(7.285e9, rel=0.001)  # Mamba Codestral
    state = (8192 + 2 * 8 * 128) * 3 * 2 + 128 * 64 * 128 * 2
    assert request_bytes(config, 10) == request_bytes(config, 10_000) == 64 * state
    assert estimate(config_of(MAMBA, "--max-model-len", "1024")).request_cache == 64 * state


@pytest.mark.parametrize("args", [(), ("--num-gpu-blocks-override", "95"), ("-tp", "4")])
def test_fewer_states_than_sequences(args: tuple[str, ...]) -> None:
    body = {
        "args": ["m", "--max-model-len", "2048", *args],
        "model_config": MAMBA,
        "hardware": {"gpu": "H100-80GB", "count": 4},
        "vllm_version": "0.32.0",
    }
    (verdict,) = judge(read_envelope(body), LIBRARY)
    found = [one for one in verdict.findings if one.rule == "mamba-blocks-below-seqs"]
    if "-tp" in args:
        assert not found
        return
    (finding,) = found
    assert finding.fix is not None
    (edit,) = finding.fix.edits
    blocks = finding.evidence["blocks"]
    assert blocks == 95 if args else 400 < blocks < 500
    assert isinstance(edit, SetFlag)
    assert blocks / 2 < int(edit.value) <= blocks
    assert verdict.accepted


@pytest.mark.parametrize(
    "body",
    [
        {"args": ["m"], "hardware": {"gpu": "H100-80GB", "count": 1}},
        {"args": ["m"], "model_config": MAMBA},
        {
            "args": [
                "m",
                "--speculative-config",
                '{"method": "ngram", "num_speculative_tokens": 2}',
            ],
            "model_config": MAMBA,
            "hardware": {"gpu": "H100-80GB", "count": 1},
        },
    ],
    ids=["no config.json", "no GPU", "drafts"],
)
def test_blocks_are_not_checked_without_the_facts(body: dict[str, Any]) -> None:
    (verdict,) = judge(read_envelope(body | {"vllm_version": "0.32.0"}), LIBRARY)
    assert "mamba-blocks-below-seqs" in {one.rule for one in verdict.not_checked}
