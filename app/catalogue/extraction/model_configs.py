"""What a configuration class of `transformers` (or of vLLM) makes of a config.json.

A config.json leaves out what its class has as default, under names of its own. Each class is made
without arguments and with probing ones, and asked for what vLLM reads.

Sources: `transformers.CONFIG_MAPPING`, `transformers_utils/config.py::_CONFIG_REGISTRY`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from app.catalogue.extraction.installed import Vllm, describe

# What vLLM and our rules read of the text model's configuration, all of them scalars.
KEYS = (
    *("num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size"),
    *("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    *("num_attention_groups", "head_dim", "hidden_size_per_head", "attention_head_dim"),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    *("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace"),
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
    *("original_max_position_embeddings", "sliding_window", "attention_chunk_size"),
    *("is_encoder_decoder", "position_embedding_type", "is_causal", "canvas_length"),
    *("multi_query", "new_decoder_architecture", "num_nextn_predict_layers", "index_topk"),
    *("mamba_chunk_size", "chunk_size", "num_layers", "tie_word_embeddings"),
)
# A value given to each of these, to see whether the class passes it on.
_PROBES: Mapping[str, int] = {"sliding_window": 4096}


def model_config_facts(vllm: Vllm) -> dict[str, Any]:
    """Give by `model_type` what its class adds to a config.json.

    Members, left out where empty: `defaults` of the text model's class; `aliases`, other names of
    a key; `text`, the path to the text model's part and the type it has if it does not say so;
    `flat`, whether the text model's keys may be in the whole instead; `gated`, keys that count
    only where another one is true.
    """
    try:
        module = vllm.module("vllm.transformers_utils.config")
        transformers = vllm.module("transformers")
    except ImportError as error:
        vllm.note(f"model configurations: {describe(error)}")
        return {}
    own = dict.fromkeys(module._CONFIG_REGISTRY)
    types = sorted({*transformers.CONFIG_MAPPING, *own})
    facts: dict[str, Any] = {}
    for name in types:
        try:
            cls = (
                module._CONFIG_REGISTRY[name] if name in own else transformers.CONFIG_MAPPING[name]
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = _facts(cls)
        except Exception as error:  # whatever a class without its arguments raises
            vllm.note(f"model configuration {name}: {describe(error)}")
            continue
        if speaks(found):
            facts[name] = found
    return facts


def speaks(facts: Mapping[str, Any]) -> bool:
    """Whether it is a language model's, or has one in it: vision and audio towers are left out."""
    return "text" in facts or "vocab_size" in facts.get("defaults", {})


def _facts(cls: Any) -> dict[str, Any]:
    config = cls()
    text = config.get_text_config()
    found: dict[str, Any] = {}
    if text is not config:
        path = next(_path_to(text, config), None)
        if path is not None:
            found["text"] = [path, str(getattr(text, "model_type", "")) or None]
            found["flat"] = _is_flat(cls)
            # Where the whole has it, vLLM gives it to the text model, false or true.
            tied = getattr(config, "tie_word_embeddings", None)
            found["defaults"] = {} if tied is None else {"tie_word_embeddings": bool(tied)}
    else:
        found["defaults"] = _defaults(cls, config)
        gated = _gated(cls)
        if gated:
            found["gated"] = gated
    aliases = {k: v for k, v in getattr(cls, "attribute_map", {}).items() if k in KEYS}
    if aliases:
        found["aliases"] = aliases
    return {key: value for key, value in found.items() if value}


def _path_to(part: Any, config: Any) -> Iterator[str]:
    for name, value in vars(config).items():
        if value is part:
            yield name
    for name, value in vars(config).items():
        if hasattr(value, "get_text_config"):
            for rest in _path_to(part, value):
                yield f"{name}.{rest}"


def _defaults(cls: Any, config: Any) -> dict[str, Any]:
    values = {key: _scalar(getattr(config, key, None)) for key in KEYS}
    values["rope_parameters"] = _rope(config)
    for key in ("num_key_value_heads", "num_kv_heads"):
        if values.get(key) is not None and _follows(cls, key, config):
            values[key] = None  # as many as query heads, which is what absence means
    if values.get("head_dim") is not None and _follows_width(cls, config):
        values["head_dim"] = None
    # Zero and false are what absence means to vLLM.
    return {key: value for key, value in values.items() if value}


def _scalar(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else None


def _rope(config: Any) -> dict[str, Any] | None:
    """Give the scaling of rotary embeddings that the class has by default."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or parameters.get("rope_type") in (None, "default"):
        return None
    kept = ("rope_type", "factor", "original_max_position_embeddings")
    return {key: parameters[key] for key in kept if _scalar(parameters.get(key)) is not None}


def _follows(cls: Any, key: str, config: Any) -> bool:
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int) or getattr(config, key) != heads:
        return False
    return bool(_with(cls, key, num_attention_heads=heads * 2) == heads * 2)


def _follows_width(cls: Any, config: Any) -> bool:
    heads, width = (getattr(config, n, None) for n in ("num_attention_heads", "hidden_size"))
    if not isinstance(heads, int) or not isinstance(width, int) or not heads:
        return False
    if config.head_dim != width // heads:
        return False
    return bool(_with(cls, "head_dim", hidden_size=width * 2) == width * 2 // heads)


def _gated(cls: Any) -> dict[str, str]:
    found = {}
    for key, value in _PROBES.items():
        if _with(cls, key, **{key: value, f"use_{key}": False}) is None and (
            _with(cls, key, **{key: value, f"use_{key}": True}) == value
        ):
            found[key] = f"use_{key}"
    return found


def _is_flat(cls: Any) -> bool:
    try:
        text = cls(num_hidden_layers=97).get_text_config()
    except Exception:  # a class may refuse a combination
        return False
    return bool(getattr(text, "num_hidden_layers", None) == 97)


def _with(cls: Any, key: str, **arguments: Any) -> Any:
    try:
        return getattr(cls(**arguments), key, None)
    except Exception as refusal:  # a class may refuse a combination
        return refusal
