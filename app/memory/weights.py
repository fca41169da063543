"""The number of a model's parameters and the bytes they take, from config.json.

Counts matrices; norms and biases are below a hundredth of them in all models that were compared
(`tests/memory/answers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.memory.layers import Layers, layers_of
from app.memory.states import Family, needed, sizes_of
from app.memory.tokens import BYTES
from app.memory.towers import Towers, towers_of
from app.rules.derived import derived
from app.rules.derived.hf_config import MODEL_CONFIG, hf_value, number, text_value
from app.rules.derived.model_sizes import (
    hidden_size,
    is_deepseek_mla,
    is_encoder_decoder,
    num_attention_heads,
    num_experts,
    num_kv_heads,
    vocab_size,
)
from app.rules.derived.model_types import (
    checkpoint_quantization,
    model_dtype,
    requested_quantization,
)
from app.serve_config.serve_config import Abstain, ServeConfig

# Families whose MLP has two matrices instead of three (no gate).
_UNGATED: Final = frozenset(
    {"gpt2", "gptj", "gpt_neox", "opt", "bloom", "falcon", "mpt", "gpt_bigcode", "starcoder2"}
    | {"phi", "persimmon", "nemotron", "nemotron_h"}
)
# Whose attention gates its output, with a projection as wide as that of queries.
_GATED_ATTENTION: Final = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
# Whose positions have an embedding, and how many more than they have positions.
_LEARNED_POSITIONS: Final = {"gpt2": 0, "opt": 2}
# Methods with which only experts are quantised.
_EXPERTS_ONLY: Final = frozenset({"mxfp4", "gpt_oss_mxfp4"})
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
    """Numbers of parameters of the whole model, by how they are shared out.

    Attributes:
        towers: of encoders for images and audio, with what connects them.
        uncounted: parts of the model whose parameters are not known and not counted.
    """

    embedding: int
    dense: int
    experts: int
    towers: int = 0
    uncounted: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All that are counted."""
        return self.embedding + self.dense + self.experts + self.towers


@derived
def parameters(config: ServeConfig) -> Parameters:
    """Count the parameters of a decoder, and of what encodes images and audio for it.

    Raises:
        Abstain: another kind of model, or config.json lacks a size.
    """
    if is_encoder_decoder(config):
        raise Abstain("the number of the model's parameters")
    hidden, kinds = hidden_size(config), layers_of(config)
    embedding = vocab_size(config) * hidden * (1 if _is_tied(config) else 2)
    extra = _LEARNED_POSITIONS.get(str(text_value(config, "model_type")))
    if extra is not None:
        embedding += (needed(config, "max_position_embeddings") + extra) * hidden
    dense = kinds.state * _state_layer(config, hidden) if kinds.state else 0
    if text_value(config, "model_type") == "zamba2":
        dense += _shared_blocks(config, hidden, kinds.full)
    elif kinds.full or kinds.local:
        dense += (kinds.full + kinds.local) * _attention(config, hidden)
        dense += _mlps(config, hidden, kinds)
    elif sizes_of(config).family is Family.CONV:
        dense += _mlps(config, hidden, kinds)
    routed, shared = _experts(config, hidden, kinds)
    towers: Towers = towers_of(config)
    return Parameters(embedding, dense + shared, routed, towers.parameters, towers.uncounted)


def _is_tied(config: ServeConfig) -> bool:
    """Whether the output shares the embedding (`VllmConfig.with_hf_config`)."""
    whole = hf_value(config, "tie_word_embeddings")
    return bool(text_value(config, "tie_word_embeddings") if whole is None else whole)


def _attention(config: ServeConfig, hidden: int) -> int:
    """Count one layer's projections."""
    heads = num_attention_heads(config)
    if is_deepseek_mla(config):
        rank = needed(config, "kv_lora_rank")
        rope, nope = needed(config, "qk_rope_head_dim"), needed(config, "qk_nope_head_dim")
        value = needed(config, "v_head_dim")
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
    gates = text_value(config, "model_type") in _GATED_ATTENTION
    return (2 + gates) * hidden * heads * size + 2 * hidden * num_kv_heads(config) * size


def _state_layer(config: ServeConfig, hidden: int) -> int:
    """Count the projections and the convolution of a layer that keeps a state."""
    found = sizes_of(config)
    inner, convolved = found.inner, found.convolved * found.kernel
    if found.family is Family.CONV:
        return 4 * hidden * inner + convolved
    if found.family is Family.MAMBA1:
        rank = _time_step_rank(config, hidden)
        steps = inner * (2 * rank + 2 * found.state)
        return 3 * hidden * inner + steps + inner * found.state + convolved
    steps = found.heads * (2 if found.family is Family.DELTA else 1)
    return hidden * (found.convolved + inner + steps) + inner * hidden + convolved


def _time_step_rank(config: ServeConfig, hidden: int) -> int:
    for key in ("time_step_rank", "mamba_dt_rank"):
        found = number(text_value(config, key))
        if found:
            return found
    return -(-hidden // 16)


def _shared_blocks(config: ServeConfig, hidden: int, uses: int) -> int:
    """Count the blocks that several layers of Zamba 2 share, and what each layer adds to one."""
    attended, rank = 2 * hidden, needed(config, "adapter_rank")
    width = needed(config, "attention_head_dim") * num_attention_heads(config)
    inner = needed(config, "intermediate_size")
    block = 3 * attended * width + width * hidden + 3 * hidden * inner
    adapter = rank * (hidden + 2 * inner)
    if text_value(config, "use_shared_attention_adapter"):
        adapter += 3 * rank * (attended + width)
    return needed(config, "num_mem_blocks") * block + uses * (hidden * hidden + adapter)


def _mlps(config: ServeConfig, hidden: int, kinds: Layers) -> int:
    """Count the MLPs without experts."""
    layers = kinds.mlp
    if layers is None:
        layers = kinds.total - _expert_layers(config, kinds)
    return layers * _matrices(config) * hidden * _dense_width(config) if layers else 0


def _experts(config: ServeConfig, hidden: int, kinds: Layers) -> tuple[int, int]:
    """Count the parameters of routed experts, and of shared ones with what routes."""
    layers = _expert_layers(config, kinds)
    if not layers:
        return 0, 0
    count, width, matrices = num_experts(config), _expert_width(config), _matrices(config)
    shared = matrices * hidden * _shared_width(config, width) + hidden * count
    latent = number(text_value(config, "moe_latent_size"))
    if latent:
        shared += 2 * hidden * latent
    return layers * count * matrices * (latent or hidden) * width, layers * shared


def _matrices(config: ServeConfig) -> int:
    return 2 if str(text_value(config, "model_type")) in _UNGATED else 3


def _expert_layers(config: ServeConfig, kinds: Layers) -> int:
    """Count the layers that have experts."""
    if kinds.experts is not None:
        return kinds.experts
    if not num_experts(config):
        return 0
    layers = kinds.total
    first = (
        number(text_value(config, "first_k_dense_replace"))
        or number(text_value(config, "num_dense_layers"))
        or number(text_value(config, "moe_layer_start_index"))
        or 0
    )
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
            return _adjusted(config, width)
    if text_value(config, "model_type") == "gpt2":
        return 4 * hidden_size(config)
    raise Abstain(f"`intermediate_size` in {MODEL_CONFIG}")


def _adjusted(config: ServeConfig, width: int) -> int:
    """Give the width that an LFM2 model makes of the one that it states (`Lfm2MLP`)."""
    if text_value(config, "model_type") != "lfm2":
        return width
    width = number(text_value(config, "block_ff_dim")) or width
    if text_value(config, "block_auto_adjust_ff_dim") is False:
        return width
    multiplier = text_value(config, "block_ffn_dim_multiplier")
    width = int((multiplier if isinstance(multiplier, int | float) else 1) * (2 * width // 3))
    multiple = number(text_value(config, "block_multiple_of")) or 256
    return multiple * -(-width // multiple)


def _expert_width(config: ServeConfig) -> int:
    return number(text_value(config, "moe_intermediate_size")) or needed(
        config, "intermediate_size"
    )


def _shared_width(config: ServeConfig, width: int) -> int:
    for key in ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"):
        given = number(text_value(config, key))
        if given is not None:
            return given
    if text_value(config, "model_type") in {"llama4", "llama4_text"}:
        return width  # always one
    own = number(text_value(config, "shared_intermediate_size"))
    count = number(text_value(config, "n_shared_experts"))
    if count is None:
        count = number(text_value(config, "moe_num_shared_experts"))
    return own or (count or 0) * width


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of a weight: of experts, of other layers, and of what is left as it is."""

    experts: float
    dense: float
    plain: float


def bytes_per_weight(config: ServeConfig) -> Widths:
    """Give the bytes of a weight by where it is.

    Raises:
        Abstain: a method whose width is not known.
    """
    plain = BYTES.get(model_dtype(config).removeprefix("torch."))
    if plain is None:
        raise Abstain("the model's dtype")
    found = checkpoint_quantization(config)
    method = str(found["quant_method"]) if found is not None else requested_quantization(config)
    if method is None:
        return Widths(plain, plain, plain)
    bits = _declared_bits(found or {}) or _BITS.get(method)
    if bits is None:
        raise Abstain(f"how wide weights are with --quantization {method}")
    overhead = _GROUP_OVERHEAD_BITS if bits <= 4 else 0.0
    width = (bits + overhead) / 8
    return Widths(width, plain if method in _EXPERTS_ONLY else width, plain)


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
