"""Batch limits, chunked prefill, prefix caching, asynchronous scheduling, executor.

Source: `engine/arg_utils.py::EngineArgs.get_batch_defaults`,
`_set_default_max_num_seqs_and_batched_tokens_args`,
`_set_default_chunked_prefill_and_prefix_caching_args`;
`config/vllm.py::VllmConfig.__post_init__` (asynchronous scheduling);
`config/parallel.py::ParallelConfig.__post_init__` (executor).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from app.rules.derived import derived
from app.rules.derived.hardware import (
    GIB,
    capability,
    device_memory,
    device_of,
    machine_of,
)
from app.rules.derived.model import (
    hf_value,
    is_attention_free,
    is_encoder_decoder,
    is_hybrid,
    is_multimodal,
    is_pooling,
    max_model_len,
    pooling_default,
    uses_mm_prefix,
)
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig

# Tokens with the all2all backends that batch (`DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP`).
_BATCHED_DP_TOKENS: Final = 256
_BATCHED_ALL2ALL: Final = frozenset({"deepep_low_latency", "nixl_ep"})
_V0_31: Final = Version("0.31.0.dev0")
_V0_33: Final = Version("0.33.0.dev0")
_ASYNC_EXECUTORS: Final = frozenset({"uni", "mp", "external_launcher"})
_ASYNC_METHODS: Final = frozenset(
    {"eagle", "eagle3", "extract_hidden_states", "mtp", "ngram_gpu"}
    | {"draft_model", "dspark", "dflash"}
)


@derived
def batch_defaults(config: ServeConfig) -> tuple[int, int]:
    """Give the default tokens per batch and sequences, before anything narrows them.

    Source: `get_batch_defaults`, for the OpenAI server.

    Raises:
        Abstain: the machine is not known.
    """
    machine = machine_of(config)
    if machine.is_cpu:
        world = _size(config, "pipeline_parallel_size") * _size(config, "tensor_parallel_size")
        return 2048 * world, 128 * world
    if not machine.is_cuda_alike:
        raise Abstain("the batch limits of this hardware")
    memory, name = device_memory(config), device_of(config).name.lower()
    small = "a100" in name or (
        machine.is_cuda and config.catalogue.version >= _V0_33 and capability(config) == (12, 1)
    )
    if memory >= 160 * GIB:
        return 16384, 1024
    if memory >= 70 * GIB and not small:
        return 8192, 1024
    return 2048, 256


@derived
def enable_chunked_prefill(config: ServeConfig) -> bool:
    """Whether prompts are cut into batches, once vLLM has settled it.

    Raises:
        Abstain: the model's config.json is needed and missing.
    """
    asked = config["enable_chunked_prefill"]
    if asked is False:
        return False
    if is_encoder_decoder(config):
        return False  # `SchedulerConfig.__post_init__` takes it back
    return bool(asked) if asked is not None else chunked_prefill_supported(config)


@derived
def enable_prefix_caching(config: ServeConfig) -> bool:
    """Whether prefixes are cached, once engine arguments have settled it.

    Raises:
        Abstain: the model's config.json is needed and missing.
    """
    asked = config["enable_prefix_caching"]
    return bool(asked) if asked is not None else prefix_caching_default(config)


@derived
def prefix_caching_default(config: ServeConfig) -> bool:
    """Whether vLLM would cache prefixes of the model (`is_prefix_caching_supported`).

    Raises:
        Abstain: the model's config.json is needed and missing.
    """
    if _has_pooler(config):
        return _pools_causally(config)
    # `attn_type` asks in this order.
    if is_hybrid(config):
        return True
    return not is_attention_free(config) and not is_encoder_decoder(config)


@derived
def max_num_batched_tokens(config: ServeConfig) -> int:
    """Give the tokens of one batch.

    Raises:
        Abstain: nothing was given, and a fact that the default depends on is missing.
    """
    asked = config["max_num_batched_tokens"]
    return asked if isinstance(asked, int) else _default_limits(config)[0]


@derived
def max_num_seqs(config: ServeConfig) -> int:
    """Give the sequences of one batch.

    Raises:
        Abstain: nothing was given, and a fact that the default depends on is missing.
    """
    asked = config["max_num_seqs"]
    if isinstance(asked, int):
        return asked
    default = batch_defaults(config)[1]
    if config["performance_mode"] == "throughput":
        default *= 2
    return min(default, max_num_batched_tokens(config))


@derived
def _default_limits(config: ServeConfig) -> tuple[int, int]:
    tokens, sequences = batch_defaults(config)
    if _batched_dp(config):
        tokens = _BATCHED_DP_TOKENS
    if config["performance_mode"] == "throughput":
        tokens *= 2
        sequences *= 2
    asked = config["max_num_seqs"]
    if isinstance(asked, int):
        sequences = asked
    length = max_model_len(config)
    # Engine arguments ask before the scheduler takes chunking back from encoder-decoders.
    chunked = config["enable_chunked_prefill"]
    if chunked is None:
        chunked = chunked_prefill_supported(config)
    if not chunked:
        tokens = max(length, tokens)
    if is_multimodal(config) and uses_mm_prefix(config):
        raise Abstain("how many tokens one image, audio or video of this model takes")
    return min(sequences * length, tokens), sequences


@derived
def chunked_prefill_supported(config: ServeConfig) -> bool:
    """Whether prompts of this model may be cut (`ModelConfig.is_chunked_prefill_supported`).

    Raises:
        Abstain: the model's config.json is needed and missing.
    """
    if _has_pooler(config):
        return _pools_causally(config)
    return not is_encoder_decoder(config) or is_hybrid(config) or is_attention_free(config)


def _has_pooler(config: ServeConfig) -> bool:
    return config["pooler_config"] is not None or is_pooling(config)


@derived
def _pools_causally(config: ServeConfig) -> bool:
    """Whether a pooling model can take a prompt in parts, and reuse prefixes.

    Source: `config/model.py::ModelConfig.attn_type`, `ischunked_prefill_supported`.

    Raises:
        Abstain: attention is neither that of a decoder nor of an encoder.
    """
    seq = pooling_default(config, "default_seq_pooling_type")
    if seq == "CLS" or hf_value(config, "is_causal") is False:
        return False
    attention = pooling_default(config, "attn_type")
    if attention == "encoder_only":
        return False
    if attention != "decoder":
        raise Abstain("how this pooling model attends")
    tok = pooling_default(config, "default_tok_pooling_type")
    pooling = config["pooler_config.pooling_type"]
    seq = config["pooler_config.seq_pooling_type"] or (
        pooling if pooling in ("CLS", "LAST", "MEAN") else seq
    )
    tok = config["pooler_config.tok_pooling_type"] or (
        pooling if pooling in ("ALL", "STEP") else tok
    )
    return seq not in ("MEAN", "CLS") and tok != "STEP"


@derived
def executor_backend(config: ServeConfig) -> str:
    """Give `uni`, `mp`, `ray`, `external_launcher`, or the import path of a class.

    On a CPU `uni` later becomes `mp` (`platforms/cpu.py`), after what is compared here.
    A placement group of Ray around the process, which makes vLLM take Ray, is not expected.
    """
    asked = config["distributed_executor_backend"]
    if isinstance(asked, str):
        return asked
    world = _size(config, "pipeline_parallel_size") * _size(config, "tensor_parallel_size")
    world *= _size(config, "prefill_context_parallel_size")
    if world * _size(config, "data_parallel_size") == 1:
        return "uni"
    if machine_of(config).is_cuda and _size(config, "nnodes") > 1:
        return "mp"
    return "ray" if config["data_parallel_backend"] == "ray" else "mp"


@derived
def async_scheduling(config: ServeConfig) -> bool:
    """Whether steps are scheduled while the GPU works, once vLLM has settled it.

    Raises:
        Abstain: the model, the draft model or the model runner is needed and not known.
    """
    if machine_of(config).is_cpu:
        return False  # `platforms/cpu.py` takes it back
    asked = config["async_scheduling"]
    if asked is not None:
        return bool(asked)
    if is_pooling(config):
        return False
    return executor_is_asynchronous(config) and async_obstacle(config) is None


@derived
def executor_is_asynchronous(config: ServeConfig) -> bool:
    """Whether the executor can schedule asynchronously (`supports_async_scheduling`).

    Raises:
        Abstain: it is a class of somebody else.
    """
    backend = executor_backend(config)
    if backend == "ray":
        # The older Ray executor cannot; it went with 0.33.
        variable = config.variable("VLLM_USE_RAY_V2_EXECUTOR_BACKEND")
        older = variable is not None and variable.value.strip() == "0"
        return not older or config.catalogue.version >= _V0_33
    if backend not in _ASYNC_EXECUTORS:
        raise Abstain("whether this executor can schedule asynchronously")
    return True


@dataclass(frozen=True, slots=True)
class AsyncObstacle:
    """What keeps steps from being scheduled asynchronously, apart from executor and runner type.

    Attributes:
        kind: `method`, `padded` or `pipeline`.
        because: in words.
    """

    kind: str
    because: str


@derived
def async_obstacle(config: ServeConfig) -> AsyncObstacle | None:
    """Tell what stands against asynchronous scheduling; since 0.33 on Model Runner V1 only.

    Up to 0.32 `pipeline` stands against the default only, not against asking for it.

    Raises:
        Abstain: the draft model or the model runner is needed and not known.
    """
    release, speculation = config.catalogue.version, speculation_of(config)
    found = None
    if speculation is not None:
        method = speculation.method
        if method not in _ASYNC_METHODS or (method == "dflash" and release < _V0_31):
            found = AsyncObstacle("method", f"drafts come from the method {method}")
        elif speculation.value("disable_padded_drafter_batch"):
            found = AsyncObstacle("padded", "disable_padded_drafter_batch is on")
    stages = _size(config, "pipeline_parallel_size")
    if found is None and stages > 1 and release >= _V0_31 and not _runs_on_v2(config):
        return AsyncObstacle("pipeline", f"Model Runner V1 has {stages} pipeline stages")
    # Since 0.33 it is Model Runner V1 only that cannot.
    if found is not None and release >= _V0_33 and _runs_on_v2(config):
        return None
    return found


def _runs_on_v2(config: ServeConfig) -> bool:
    from app.rules.runner import Runner, decide_runner

    version = decide_runner(config).version
    if version is None:
        raise Abstain("which model runner vLLM takes")
    return version is Runner.V2


def _batched_dp(config: ServeConfig) -> bool:
    """`ParallelConfig.use_batched_dp_moe`."""
    return bool(
        config["all2all_backend"] in _BATCHED_ALL2ALL
        and config["enable_expert_parallel"]
        and _size(config, "data_parallel_size") > 1
    )


def _size(config: ServeConfig, axis: str) -> int:
    size = config[axis]
    return size if isinstance(size, int) else 1
