"""What the keys and values of one token take in one layer, on one GPU.

Source: `vllm/v1/kv_cache_interface.py` (`AttentionSpec.real_page_size_bytes`, `MLAAttentionSpec`).
"""

from __future__ import annotations

from typing import Final

from app.rules.derived.model_sizes import head_size, num_kv_heads, uses_mla
from app.rules.derived.model_types import checkpoint_quantization, model_dtype
from app.rules.derived.parallel import size
from app.serve_config.serve_config import Abstain, ServeConfig

BYTES: Final = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
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


def token_bytes(config: ServeConfig) -> float:
    """Give the bytes a token takes in one layer, on one GPU.

    Raises:
        Abstain: as `bytes_of_element`, or a size is missing.
    """
    width = bytes_of_element(config)
    if uses_mla(config):
        return head_size(config) * width  # latent: one vector, on every rank
    ranks = size(config, "tensor_parallel_size")
    heads = max(1, num_kv_heads(config) // ranks)
    return 2 * heads * head_size(config) * width
