"""Parts of config.json for examples: one model of each kind that rules tell apart."""

from __future__ import annotations

from typing import Any, Final

from app.rules.configuration.parallel_models import DENSE

ENCODER: Final[dict[str, Any]] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "position_embedding_type": "rotary",
    "torch_dtype": "float32",
    "vocab_size": 30522,
}
"""A pooling model that attends in both directions."""

SPEECH: Final[dict[str, Any]] = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "d_model": 384,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "encoder_layers": 4,
    "is_encoder_decoder": True,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "num_mel_bins": 80,
    "torch_dtype": "float16",
    "vocab_size": 51865,
}
"""An encoder and a decoder."""

VISION: Final[dict[str, Any]] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "qwen2_5_vl_text",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
    "vision_config": {"model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280},
}
"""A model that takes images and video."""

SLIDING: Final[dict[str, Any]] = {
    **DENSE,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": 4096,
}
"""Every layer attends to the last 4096 tokens."""
