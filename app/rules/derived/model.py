"""Facts about the model that rules compare with: sizes, class, abilities, length, dtype.

    num_attention_heads(config)            # of the whole model, not per GPU
    has_ability(config, "supports_pp")     # of the class that vLLM takes
    max_model_len(config)                  # after vLLM has settled it

Each raises `Abstain` where the model's config.json (or another fact) was not given, and never
guesses. The order and the meaning are vLLM's: `config/model.py::ModelConfig.__post_init__` and
`transformers_utils/model_arch_config_convertor.py`.
"""

from __future__ import annotations

from app.rules.derived.hf_config import (
    MODEL_CONFIG,
    hf_config,
    hf_text_config,
    hf_value,
    text_value,
)
from app.rules.derived.model_class import (
    architectures,
    convert_type,
    has_ability,
    is_attention_free,
    is_hybrid,
    is_multimodal,
    is_pooling,
    model_class,
    pooling_default,
    runner_type,
    supports_lora,
    supports_pp,
)
from app.rules.derived.model_length import (
    allows_longer_max_model_len,
    declared_max_model_len,
    derived_max_model_len,
    max_model_len,
)
from app.rules.derived.model_sizes import (
    head_size,
    hidden_size,
    is_diffusion,
    is_encoder_decoder,
    is_moe,
    model_type,
    num_attention_heads,
    num_experts,
    num_kv_heads,
    num_layers,
    rope_parameters,
    sliding_window,
    uses_mla,
    uses_mm_prefix,
    vocab_size,
)
from app.rules.derived.model_types import (
    checkpoint_dtype,
    checkpoint_quantization,
    model_dtype,
    quantization_method,
    quantization_override,
    requested_quantization,
    supported_dtypes,
)

__all__ = [
    "MODEL_CONFIG",
    "allows_longer_max_model_len",
    "architectures",
    "checkpoint_dtype",
    "checkpoint_quantization",
    "convert_type",
    "declared_max_model_len",
    "derived_max_model_len",
    "has_ability",
    "head_size",
    "hf_config",
    "hf_text_config",
    "hf_value",
    "hidden_size",
    "is_attention_free",
    "is_diffusion",
    "is_encoder_decoder",
    "is_hybrid",
    "is_moe",
    "is_multimodal",
    "is_pooling",
    "max_model_len",
    "model_class",
    "model_dtype",
    "model_type",
    "num_attention_heads",
    "num_experts",
    "num_kv_heads",
    "num_layers",
    "pooling_default",
    "quantization_method",
    "quantization_override",
    "requested_quantization",
    "rope_parameters",
    "runner_type",
    "sliding_window",
    "supported_dtypes",
    "supports_lora",
    "supports_pp",
    "text_value",
    "uses_mla",
    "uses_mm_prefix",
    "vocab_size",
]
