"""The number of a model's parameters and the bytes they take, from config.json.

Counts matrices; norms and biases are below a thousandth of them. Vision towers and the like are
not counted, so that the number is a lower bound for multimodal models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.memory.layers import layers_of
from app.rules.derived.hf_config import MODEL_CONFIG, number, text_value
from app.rules.derived.model_class import is_attention_free
from app.rules.derived.model_sizes import (
    hidden_size,
    is_deepseek_mla,
    is_encoder_decoder,
    num_attention_heads,
    num_experts,
    num_kv_heads,
    num_layers,
    vocab_size,
)
from app.rules.derived.model_types import (
    checkpoint_quantization,
    model_dtype,
    requested_quantization,
)
from app.serve_config.serve_config import Abstain, ServeConfig

BYTES: Final = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
# Families whose MLP has two matrices instead of three (no gate).
_UNGATED: Final = frozenset(
    {"gpt2", "gptj", "gpt_neox", "opt", "bloom", "falcon", "mpt", "gpt_bigcode", "starcoder2"}
    | {"phi", "persimmon", "nemotron"}
)
# Bits a weight, where the method's own config does not say.
_BITS: Final = {
    "fp8": 8.0,
    "fbgemm_fp8": 8.0,
    "modelopt": 8.0,
    "modelopt_fp4": 4.5,
    "mxfp4": 4.25,
    "gptq": 4.0,
    "awq": 4.0,
    "bitsandbytes": 4.5,
}
# Scales and zeros of a group of 128 at 16 and 4 bits.
_GROUP_OVERHEAD_BITS: Final = 0.16


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters of the whole model, by how they are shared out."""

    embedding: int
    dense: int
    experts: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.dense + self.experts


def parameters(config: ServeConfig) -> Parameters:
    """Count the parameters of a decoder-only transformer.

    Raises:
        Abstain: another kind of model, or config.json lacks a size.
    """
    if is_encoder_decoder(config) or is_attention_free(config):
        raise Abstain("the number of the model's parameters")
    hidden, layers = hidden_size(config), num_layers(config)
    tied = text_value(config, "tie_word_embeddings")
    embedding = vocab_size(config) * hidden * (1 if tied else 2)
    expert_layers = _expert_layers(config, layers)
    kinds = layers_of(config)
    attention = (kinds.full + kinds.local) * _attention(config, hidden)
    if kinds.state:
        attention += kinds.state * _state_layer(config, hidden)
    gate = 2 if str(text_value(config, "model_type")) in _UNGATED else 3
    dense = (
        (layers - expert_layers) * gate * hidden * _dense_width(config)
        if (expert_layers < layers)
        else 0
    )
    experts = shared = 0
    if expert_layers:
        width = _expert_width(config)
        experts = expert_layers * num_experts(config) * 3 * hidden * width
        shared = expert_layers * 3 * hidden * _shared_width(config, width)
    return Parameters(embedding, attention + dense + shared, experts)


def _attention(config: ServeConfig, hidden: int) -> int:
    """Count one layer's projections."""
    heads = num_attention_heads(config)
    if is_deepseek_mla(config):
        rank = _number(config, "kv_lora_rank")
        rope, nope = _number(config, "qk_rope_head_dim"), _number(config, "qk_nope_head_dim")
        value = _number(config, "v_head_dim")
        query_rank = number(text_value(config, "q_lora_rank"))
        query = heads * (rope + nope)
        queries = hidden * query_rank + query_rank * query if query_rank else hidden * query
        return (
            queries
            + hidden * (rank + rope)
            + rank * heads * (nope + value)
            + heads * value * hidden
        )
    size = number(text_value(config, "head_dim")) or hidden // heads
    return 2 * hidden * heads * size + 2 * hidden * num_kv_heads(config) * size


def _state_layer(config: ServeConfig, hidden: int) -> int:
    """Count the projections of a layer that keeps a state: Mamba, or a gated delta net."""
    values = number(text_value(config, "linear_num_value_heads"))
    if values:
        value = values * _number(config, "linear_value_head_dim")
        key = _number(config, "linear_num_key_heads") * _number(config, "linear_key_head_dim")
        return hidden * (2 * key + 2 * value) + value * hidden
    inner = number(text_value(config, "mamba_d_ssm")) or hidden * (
        number(text_value(config, "mamba_expand")) or number(text_value(config, "expand")) or 2
    )
    return 3 * hidden * inner


def _expert_layers(config: ServeConfig, layers: int) -> int:
    """Count the layers that have experts."""
    if not num_experts(config):
        return 0
    first = number(text_value(config, "first_k_dense_replace")) or 0
    frequency = text_value(config, "moe_layer_freq")
    if isinstance(frequency, list):
        return sum(1 for used in frequency if used)
    step = (
        number(frequency)
        or number(text_value(config, "decoder_sparse_step"))
        or number(text_value(config, "interleave_moe_layer_step"))
        or number(text_value(config, "expert_layer_period"))
        or 1
    )
    dense = text_value(config, "mlp_only_layers")
    return (layers - first) // step - (len(dense) if isinstance(dense, list) else 0)


def _dense_width(config: ServeConfig) -> int:
    for key in ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim"):
        width = number(text_value(config, key))
        if width:
            return width
    if text_value(config, "model_type") == "gpt2":
        return 4 * hidden_size(config)
    raise Abstain(f"`intermediate_size` in {MODEL_CONFIG}")


def _expert_width(config: ServeConfig) -> int:
    return number(text_value(config, "moe_intermediate_size")) or _number(
        config, "intermediate_size"
    )


def _shared_width(config: ServeConfig, width: int) -> int:
    given = number(text_value(config, "shared_expert_intermediate_size"))
    if given is not None:
        return given
    if text_value(config, "model_type") in {"llama4", "llama4_text"}:
        return width  # always one
    own = number(text_value(config, "shared_intermediate_size"))
    return own or (number(text_value(config, "n_shared_experts")) or 0) * width


def _number(config: ServeConfig, key: str) -> int:
    found = number(text_value(config, key))
    if found is None:
        raise Abstain(f"`{key}` in {MODEL_CONFIG}")
    return found


def bytes_per_weight(config: ServeConfig) -> tuple[float, float]:
    """Give the bytes of a quantised weight and of one that is left as it is (embeddings).

    Raises:
        Abstain: a method whose width is not known.
    """
    plain = BYTES.get(model_dtype(config).removeprefix("torch."))
    if plain is None:
        raise Abstain("the model's dtype")
    found = checkpoint_quantization(config)
    method = str(found["quant_method"]) if found is not None else requested_quantization(config)
    if method is None:
        return plain, plain
    bits = _declared_bits(found or {}) or _BITS.get(method)
    if bits is None:
        raise Abstain(f"how wide weights are with --quantization {method}")
    overhead = _GROUP_OVERHEAD_BITS if bits <= 4 else 0.0
    return (bits + overhead) / 8, plain


def _declared_bits(found: Mapping[str, Any]) -> float | None:
    """Read the width that the checkpoint's quantisation config states."""
    for key in ("bits", "w_bit", "weight_bits"):
        bits = number(found.get(key))
        if bits:
            return float(bits)
    if found.get("load_in_8bit"):
        return 8.0
    groups = found.get("config_groups")
    widths = [
        number(weights.get("num_bits"))
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping) and isinstance(weights := group.get("weights"), Mapping)
    ]
    known = [width for width in widths if width]
    return float(max(known)) if known and len(known) == len(widths) else None
