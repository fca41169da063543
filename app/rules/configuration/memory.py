"""Whether weights and one request fit, as an estimate: a warning, never a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.memory.estimate import GIB, Estimate, estimate
from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity

_70B: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_H100: Final = "H100-80GB"


@rule(
    id="memory-weights",
    title="The weights alone are more than the GPUs may hold",
    explanation="Parameters are counted from config.json and multiplied by the bytes of the dtype "
    "or the quantisation, then shared out over tensor, pipeline and expert ranks. What vLLM may "
    "use is the device's memory times `--gpu-memory-utilization`. The count leaves out norms, "
    "biases and vision towers, so it is on the low side.",
    remedy="Use more GPUs (`-tp`), a quantised checkpoint or a larger GPU.",
    severity=Severity.WARNING,
    area="memory",
    source="vllm/v1/worker/gpu_worker.py::Worker.determine_available_memory",
    bad=(Example("vllm serve m", model_config=_70B, gpu=_H100),),
    good=(Example("vllm serve m -tp 4", model_config=_70B, gpu=_H100, note="141 GB on four"),),
)
def weights(config: ServeConfig) -> Iterator[Finding]:
    """Compare the weights with what may be used."""
    found = estimate(config)
    if found.left_for_cache < 0:
        yield weights.finding(
            f"an estimate: the weights of {found.parameters / 1e9:.1f}e9 parameters take "
            f"{found.weights / GIB:.1f} GiB on each GPU, and vLLM may use "
            f"{found.allowed / GIB:.1f} GiB of its {found.device / GIB:.1f}",
            location=config.place("tensor_parallel_size") or config.place("model"),
            evidence=found.as_json(),
        )


@rule(
    id="memory-kv-cache",
    title="One request of full length does not fit into the KV cache",
    explanation="vLLM refuses to start where the cache that is left after the weights cannot hold "
    "one request of `--max-model-len`. Activations and graphs take more than this estimate, which "
    "counts none of them.",
    remedy="Lower `--max-model-len`, raise `-tp` or `--gpu-memory-utilization`, or use "
    "`--kv-cache-dtype fp8`.",
    severity=Severity.WARNING,
    area="memory",
    source="vllm/v1/core/kv_cache_utils.py::check_enough_kv_cache_memory",
    bad=(Example("vllm serve m -tp 2", model_config=_70B, gpu=_H100, note="131,072 tokens"),),
    good=(
        Example("vllm serve m -tp 4", model_config=_70B, gpu=_H100),
        Example("vllm serve m -tp 2 --max-model-len 4096", model_config=_70B, gpu=_H100),
        Example("vllm serve m -tp 2 --max-model-len auto", model_config=_70B, gpu=_H100),
    ),
)
def cache(config: ServeConfig) -> Iterator[Finding]:
    """Compare one request with what the weights leave."""
    if config["max_model_len"] == -1:
        return  # vLLM takes what fits
    found = estimate(config)
    if 0 <= found.left_for_cache < found.request_cache:
        yield cache.finding(
            f"an estimate: the cache of one request of {found.tokens} tokens takes "
            f"{found.request_cache / GIB:.1f} GiB on each GPU, and the weights leave "
            f"{found.left_for_cache / GIB:.1f} GiB; about {_fits(found)} tokens fit at the most",
            location=config.place("max_model_len") or config.place("model"),
            evidence={**found.as_json(), "fits_tokens": _fits(found)},
        )


def _fits(found: Estimate) -> int:
    return int(found.tokens * found.left_for_cache / found.request_cache)
