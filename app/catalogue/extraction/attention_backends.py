"""What each attention backend says it supports.

Source: `v1/attention/backend.py::AttentionBackend`, asked by value; a backend whose module needs
a kernel library that is not installed has no row.
"""

from __future__ import annotations

from typing import Any, get_args

from app.catalogue.extraction.installed import Vllm

_QUESTIONS = (
    "is_mla",
    "is_sparse",
    "supports_sink",
    "supports_mm_prefix",
    "supports_non_causal",
    "supports_batch_invariance",
    "supports_kv_connector",
    "supports_pcp",
    "supports_dcp",
    "supports_sliding_window",
    "supports_rswa",
    "supports_per_head_quant_scales",
)
_CAPABILITIES = (
    (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
)  # fmt: skip
_HEAD_SIZES = (
    32, 40, 64, 72, 80, 96, 112, 120, 128, 160, 192, 224, 256, 320, 512, 576,
)  # fmt: skip
_BLOCK_SIZES = (1, 8, 16, 32, 48, 64, 128, 256, 512, 1024)


def attention_backend_matrix(vllm: Vllm) -> dict[str, dict[str, Any] | None]:
    """Give a row of capabilities for each backend, or None for one that does not import."""
    registry = vllm.module("vllm.v1.attention.backends.registry")
    matrix: dict[str, dict[str, Any] | None] = {}
    for name, member in registry.AttentionBackendEnum.__members__.items():
        try:
            backend = member.get_class()
        except Exception as error:  # importing kernels fails in many ways
            vllm.note_failure(f"attention backend {name}", error)
            matrix[name] = None
        else:
            matrix[name] = _row(vllm, name, backend)
    return matrix


def _row(vllm: Vllm, name: str, backend: Any) -> dict[str, Any]:
    capability = vllm.module("vllm.platforms.interface").DeviceCapability
    torch = vllm.module("torch")
    cache_dtypes = get_args(vllm.module("vllm.config.cache").CacheDType)

    def ask(question: str, answer: Any) -> Any:
        try:
            return answer()
        except Exception as error:  # a backend's answer may need its kernels
            vllm.note_failure(f"attention backend {name}, {question}", error)
            return None

    row = {
        question: ask(question, lambda question=question: bool(getattr(backend, question)()))
        for question in _QUESTIONS
        if hasattr(backend, question)
    }
    row["compute_capability"] = ask(
        "compute_capability",
        lambda: [
            f"{major}.{minor}"
            for major, minor in _CAPABILITIES
            if backend.supports_compute_capability(capability(major, minor))
        ],
    )
    row["kv_cache_dtypes"] = ask(
        "kv_cache_dtypes",
        lambda: [dtype for dtype in cache_dtypes if backend.supports_kv_cache_dtype(dtype)],
    )
    row["dtypes"] = ask(
        "dtypes",
        lambda: [
            dtype
            for dtype in ("float16", "bfloat16", "float32")
            if backend.supports_dtype(getattr(torch, dtype))
        ],
    )
    row["head_sizes"] = ask(
        "head_sizes",
        lambda: [size for size in _HEAD_SIZES if backend.supports_head_size(size)],
    )
    row["block_sizes"] = ask(
        "block_sizes",
        lambda: [size for size in _BLOCK_SIZES if backend.supports_block_size(size)],
    )
    return {question: answer for question, answer in row.items() if answer is not None}
