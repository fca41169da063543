"""Sizes and kinds of the model, read from config.json in vLLM's order of keys.

Source: `transformers_utils/model_arch_config_convertor.py::ModelArchConfigConvertorBase`.
All sizes are of the whole model, not per GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.rules.derived import derived
from app.rules.derived.hf_config import (
    MODEL_CONFIG,
    hf_text_config,
    hf_value,
    knows_model_type,
    number,
    text_value,
)
from app.serve_config.serve_config import Abstain, ServeConfig

_KV_HEAD_KEYS: Final = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_WITHOUT_KV_HEADS: Final = frozenset({"mamba", "falcon_mamba", "timm_wrapper", "medusa"})


@derived
def model_type(config: ServeConfig) -> str:
    """Give `hf_config.model_type`.

    Raises:
        Abstain: config.json has none.
    """
    value = hf_value(config, "model_type")
    if not isinstance(value, str):
        raise Abstain(f"`model_type` in {MODEL_CONFIG}")
    return value


@derived
def num_attention_heads(config: ServeConfig) -> int:
    """Give the number of query heads (`get_total_num_attention_heads`)."""
    _as_usual(config, "get_total_num_attention_heads")
    return _size(config, "num_attention_heads")


@derived
def num_kv_heads(config: ServeConfig) -> int:
    """Give the number of key-value heads; without grouping that of query heads.

    Source: `get_total_num_kv_heads`.
    """
    if hf_value(config, "model_type") in _WITHOUT_KV_HEADS:
        return 0
    _as_usual(config, "get_total_num_kv_heads")
    for key in _KV_HEAD_KEYS:
        value = number(text_value(config, key))
        if value is not None:
            return value
    return num_attention_heads(config)


@derived
def num_layers(config: ServeConfig) -> int:
    """Give the number of decoder layers (`get_num_hidden_layers`)."""
    _as_usual(config, "get_num_hidden_layers")
    return _size(config, "num_hidden_layers")


@derived
def hidden_size(config: ServeConfig) -> int:
    """Give the width of the hidden states (`get_hidden_size`)."""
    _as_usual(config, "get_hidden_size")
    return _size(config, "hidden_size")


@derived
def vocab_size(config: ServeConfig) -> int:
    """Give the number of tokens in the vocabulary (`get_vocab_size`)."""
    _as_usual(config, "get_vocab_size")
    return _size(config, "vocab_size")


@derived
def head_size(config: ServeConfig) -> int:
    """Give the size of an attention head; with MLA that of the compressed one.

    Source: `get_head_size`.
    """
    if hf_value(config, "model_type") in _WITHOUT_KV_HEADS:
        return 0
    if hf_value(config, "model_type") == "zamba2":
        return _size(config, "attention_head_dim")  # `Zamba2ModelArchConfigConvertor`
    _as_usual(config, "get_head_size")
    if is_deepseek_mla(config):
        rank, rope = _size(config, "kv_lora_rank"), number(text_value(config, "qk_rope_head_dim"))
        if mla_is_disabled(config):
            return (rope or 0) + (number(text_value(config, "qk_nope_head_dim")) or 0)
        return rank + (rope or 0)
    size = number(text_value(config, "head_dim"))
    if size:
        return size
    per_head = number(text_value(config, "hidden_size_per_head"))
    if per_head is not None:
        return per_head
    heads = num_attention_heads(config)
    return hidden_size(config) // heads if heads else 0


@derived
def num_experts(config: ServeConfig) -> int:
    """Give the number of experts; 0 for a dense model (`get_num_experts`)."""
    for key in config.catalogue.expert_count_keys:
        count = text_value(config, key)
        if isinstance(count, list):
            return int(count[0]) if count else 0
        if number(count):
            return number(count) or 0
    blocks = text_value(config, "block_configs")
    counts = (
        number(block.get("n_routed_experts")) or 0
        for block in (blocks if isinstance(blocks, list) else ())
        if isinstance(block, Mapping) and block.get("block_type") == "moe"
    )
    return max(counts, default=0)


def is_moe(config: ServeConfig) -> bool:
    """Whether the model has experts (`ModelConfig.is_moe`)."""
    return num_experts(config) > 0


@derived
def is_deepseek_mla(config: ServeConfig) -> bool:
    """Whether the model was built with multi-head latent attention (`is_deepseek_mla`)."""
    listed = config.catalogue.model_facts.mla_model_types
    if text_value(config, "model_type") not in listed:
        return False
    if text_value(config, "compress_ratios") is not None:
        return text_value(config, "head_dim") is not None
    return text_value(config, "kv_lora_rank") is not None


@derived
def uses_mla(config: ServeConfig) -> bool:
    """Whether vLLM runs multi-head latent attention (`ModelConfig.use_mla`)."""
    if mla_is_disabled(config):
        return False
    if text_value(config, "is_causal") is False and config.catalogue.model_facts.mla_needs_causal:
        return False
    return is_deepseek_mla(config)


def mla_is_disabled(config: ServeConfig) -> bool:
    """Whether `VLLM_MLA_DISABLE` is set to a number other than 0."""
    variable = config.variable("VLLM_MLA_DISABLE")
    return variable is not None and variable.value.strip() not in {"", "0"}


@derived
def sliding_window(config: ServeConfig) -> int | None:
    """Give the sliding window in tokens, or None (`ModelConfig.get_sliding_window`).

    As config.json has it: `--disable-sliding-window` is not taken into account.
    """
    return number(text_value(config, "sliding_window")) or None


@derived
def is_encoder_decoder(config: ServeConfig) -> bool:
    """Whether encoder and decoder are two (`transformers_utils/config.py::is_encoder_decoder`)."""
    return bool(hf_value(config, "is_encoder_decoder") or text_value(config, "is_encoder_decoder"))


@derived
def uses_mm_prefix(config: ServeConfig) -> bool:
    """Whether images attend in both directions (`is_mm_prefix_lm`), as in Gemma 3.

    Source: `model_arch_config_convertor.py::is_mm_prefix_lm`.
    """
    given = hf_value(config, "is_mm_prefix_lm")
    if given is not None:
        return bool(given)
    _as_usual(config, "is_mm_prefix_lm")
    return hf_value(config, "model_type") in config.catalogue.model_facts.mm_prefix_model_types


@derived
def is_diffusion(config: ServeConfig) -> bool:
    """Whether it is a discrete diffusion model (`ModelConfig.is_diffusion`)."""
    return hf_value(config, "canvas_length") is not None


@derived
def rope_parameters(config: ServeConfig) -> tuple[Mapping[str, Any], ...]:
    """Give the parameters of rotary embedding, one per kind of layer; empty without any.

    Each has a `rope_type`; the older names `rope_scaling` and `type` are read as vLLM does.

    Source: `transformers_utils/config.py::patch_rope_parameters`, `iter_rope_parameters`.
    """
    text = hf_text_config(config)
    given = text.get("rope_scaling") or text_value(config, "rope_parameters")
    if not isinstance(given, Mapping):
        return ()
    nested = [value for value in given.values() if isinstance(value, Mapping)]
    per_layer = nested if nested and len(nested) == len(given) else [given]
    return tuple(_typed(parameters) for parameters in per_layer if parameters)


def _typed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if not isinstance(kind, str):
        raise Abstain(f"a `rope_type` that is text in {MODEL_CONFIG}")
    return {**parameters, "rope_type": {"su": "longrope", "mrope": "default"}.get(kind, kind)}


def _as_usual(config: ServeConfig, method: str) -> None:
    """Abstain where vLLM works a size of this model type out in a way of its own."""
    kind = hf_value(config, "model_type")
    if method in config.catalogue.model_facts.convertors.get(str(kind), ()):
        raise Abstain(f"what {method} of vLLM makes of a {kind} model")


def _size(config: ServeConfig, key: str) -> int:
    value = number(text_value(config, key))
    if value is None and not knows_model_type(config):
        raise Abstain(f"`{key}` in {MODEL_CONFIG}")
    return value or 0
