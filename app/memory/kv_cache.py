"""The KV cache that one request needs, by how the model attends.

Sources: `vllm/v1/kv_cache_interface.py` (`AttentionSpec.real_page_size_bytes`, `MLAAttentionSpec`,
`SlidingWindowSpec.max_memory_usage_bytes`, `MambaSpec`).
"""

from __future__ import annotations

from typing import Final

from app.memory.layers import layers_of
from app.memory.weights import BYTES
from app.rules.derived.hf_config import MODEL_CONFIG, number, text_value
from app.rules.derived.model_class import is_attention_free
from app.rules.derived.model_sizes import (
    head_size,
    hidden_size,
    is_encoder_decoder,
    num_kv_heads,
    sliding_window,
    uses_mla,
)
from app.rules.derived.model_types import checkpoint_quantization, model_dtype
from app.rules.derived.parallel import size
from app.serve_config.serve_config import Abstain, ServeConfig

# Heads, the size of one, and the size of the state of each of its elements.
_STATE_KEYS: Final = (
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),
    ("linear_num_value_heads", "linear_value_head_dim", "linear_key_head_dim"),
)
_ONE_BYTE: Final = ("fp8", "int8")


def bytes_of_element(config: ServeConfig) -> float:
    """Give the bytes of one cached number.

    Raises:
        Abstain: a cache dtype whose layout is its own.
    """
    dtype = config["kv_cache_dtype"]
    if dtype in {None, "auto"}:
        found = checkpoint_quantization(config)
        if found is not None and found.get("kv_cache_scheme"):
            return 1.0
        dtype = model_dtype(config).removeprefix("torch.")
    if str(dtype).startswith(_ONE_BYTE) and str(dtype) != "fp8_ds_mla":
        return 1.0
    width = BYTES.get(str(dtype))
    if width is None:
        raise Abstain(f"how wide a cached number is with --kv-cache-dtype {dtype}")
    return width


def request_bytes(config: ServeConfig, tokens: int) -> int:
    """Give the bytes per GPU that the cache of one request of so many tokens takes.

    Raises:
        Abstain: the model's layers or its state are not known.
    """
    if is_encoder_decoder(config) or is_attention_free(config):
        raise Abstain("how the model keeps its state")
    layers = layers_of(config)
    stages = size(config, "pipeline_parallel_size")
    window = sliding_window(config)
    kept = tokens if window is None else min(tokens, window + _in_flight(config))
    per_layer = _token_bytes(config)
    state = layers.state * state_bytes(config) if layers.state else 0
    return int((per_layer * (layers.full * tokens + layers.local * kept) + state) / stages)


def state_bytes(config: ServeConfig) -> float:
    """Give the bytes per GPU of one request's state in one layer, however long the request.

    Source: `vllm/model_executor/layers/mamba/mamba_utils.py::MambaStateShapeCalculator`.

    Raises:
        Abstain: config.json has not the sizes of a Mamba 2 or gated delta net state.
    """
    width = BYTES.get(model_dtype(config).removeprefix("torch."), 2.0)
    ranks = size(config, "tensor_parallel_size")
    for heads, head, state in _STATE_KEYS:
        sizes = [number(text_value(config, key)) for key in (heads, head, state)]
        if all(sizes):
            kept = 1.0
            for factor in sizes:
                kept *= factor or 0
            return kept * width / ranks
    wide = number(text_value(config, "mamba_d_state"))
    if wide:  # Mamba 1
        inner = hidden_size(config) * (number(text_value(config, "mamba_expand")) or 2)
        return inner * wide * width / ranks
    raise Abstain(f"the size of the state that layers keep, in {MODEL_CONFIG}")


def _token_bytes(config: ServeConfig) -> float:
    """Give the bytes a token takes in one layer, on one GPU."""
    width = bytes_of_element(config)
    if uses_mla(config):
        return head_size(config) * width  # latent: one vector, on every rank
    ranks = size(config, "tensor_parallel_size")
    heads = max(1, num_kv_heads(config) // ranks)
    return 2 * heads * head_size(config) * width


def _in_flight(config: ServeConfig) -> int:
    """What the window's layers keep beyond it: the tokens of the step that is being computed."""
    batched = config["max_num_batched_tokens"]
    return batched if isinstance(batched, int) else 8192
