"""The KV cache that one request needs, by how the model attends.

Source: `vllm/v1/kv_cache_interface.py` (`SlidingWindowSpec.max_memory_usage_bytes`).
"""

from __future__ import annotations

from app.memory.layers import layers_of
from app.memory.pages import pool_of
from app.memory.tokens import token_bytes
from app.rules.derived.model_sizes import is_encoder_decoder, sliding_window
from app.rules.derived.parallel import size
from app.serve_config.serve_config import Abstain, ServeConfig


def request_bytes(config: ServeConfig, tokens: int) -> int:
    """Give the bytes per GPU that the cache of one request of so many tokens takes.

    Raises:
        Abstain: the model's layers or its state are not known.
    """
    if is_encoder_decoder(config):
        raise Abstain("how the model keeps its state")
    layers = layers_of(config)
    if layers.state:
        return pool_of(config).request(tokens)
    stages = size(config, "pipeline_parallel_size")
    window = sliding_window(config)
    kept = tokens
    if window is not None and layers.local:
        kept = min(tokens, window + _in_flight(config))
    return int(token_bytes(config) * (layers.full * tokens + layers.local * kept) / stages)


def _in_flight(config: ServeConfig) -> int:
    """What the window's layers keep beyond it: the tokens of the step that is being computed."""
    batched = config["max_num_batched_tokens"]
    return batched if isinstance(batched, int) else 8192
