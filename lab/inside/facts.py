"""The finished engine configuration, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

_MODEL = (
    *("architecture", "convert_type", "enforce_eager", "generation_config", "is_attention_free"),
    *("is_hybrid", "is_moe", "logprobs_mode", "max_logprobs", "max_model_len", "quantization"),
    *("return_sampling_mask", "runner_type", "seed", "tokenizer_mode", "use_mla"),
)
_PARALLEL = (
    *("data_parallel_size", "data_parallel_size_local", "decode_context_parallel_size"),
    *("distributed_executor_backend", "enable_batch_sharded_sampling"),
    *("enable_expert_parallel", "pipeline_parallel_size", "prefill_context_parallel_size"),
    *("tensor_parallel_size", "worker_cls", "world_size"),
)
_SCHEDULER = (
    *("async_scheduling", "enable_chunked_prefill", "max_num_batched_tokens", "max_num_seqs"),
    *("policy", "scheduler_cls"),
)
_FRONT_END = (
    *("api_server_count", "enable_auto_tool_choice", "enable_scale_out", "headless"),
    *("served_model_name", "tokens_only", "tool_call_parser"),
)


def facts_of(config: Any, front_end: Any) -> dict[str, Any]:
    """Describe a `VllmConfig` and the namespace of `vllm serve` (None if there is none).

    A fact that this version does not have is left out; one that cannot be computed says why.
    """
    model = config.model_config
    facts = {
        **_attributes(model, _MODEL),
        **_attributes(config.parallel_config, _PARALLEL),
        **_attributes(config.scheduler_config, _SCHEDULER),
        **_attributes(front_end, _FRONT_END),
    }
    computed: dict[str, Callable[[], Any]] = {
        "use_v2_model_runner": lambda: config.use_v2_model_runner,
        "dtype": lambda: str(model.dtype).removeprefix("torch."),
        "logits_processors": lambda: (
            model.logits_processors and list(map(str, model.logits_processors))
        ),
        "block_size": lambda: config.cache_config.block_size,
        "kv_cache_dtype": lambda: config.cache_config.cache_dtype,
        "enable_prefix_caching": lambda: config.cache_config.enable_prefix_caching,
        "gpu_memory_utilization": lambda: config.cache_config.gpu_memory_utilization,
        "cudagraph_mode": lambda: config.compilation_config.cudagraph_mode,
        "compilation_mode": lambda: config.compilation_config.mode,
        "cudagraph_capture_sizes": lambda: config.compilation_config.cudagraph_capture_sizes,
        "optimization_level": lambda: config.optimization_level,
        "attention_backend": lambda: config.attention_config.backend,
        "load_format": lambda: config.load_config.load_format,
        "device_type": lambda: config.device_config.device_type,
        "speculative": lambda: (
            _attributes(config.speculative_config, ("method", "num_speculative_tokens")) or None
        ),
        "lora": lambda: _attributes(config.lora_config, ("max_lora_rank", "max_loras")) or None,
        "structured_outputs_backend": lambda: config.structured_outputs_config.backend,
        "reasoning_parser": lambda: config.structured_outputs_config.reasoning_parser,
        "executor_class": lambda: _executor_class(config),
    }
    return facts | {name: _plain(_attempt(compute)) for name, compute in computed.items()}


def _attributes(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    return {
        name: _plain(_attempt(partial(getattr, owner, name)))
        for name in names
        if hasattr(type(owner), name) or name in getattr(owner, "__dict__", ())
    }


def _attempt(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception as error:  # any error of vLLM's is the answer here
        return f"error: {type(error).__name__}: {str(error)[:200]}"


def _executor_class(config: Any) -> str:
    """Name the executor: choosing it is the engine's first step after its configuration."""
    from vllm.v1.executor import Executor

    return str(Executor.get_class(config).__name__)


def _plain(value: Any) -> Any:
    if hasattr(value, "name") and hasattr(value, "value"):
        return value.name
    return value if isinstance(value, int | float | str | list | dict | None) else str(value)
