"""Adapters: what `--enable-lora` and its options need.

Source: `engine/arg_utils.py::EngineArgs.create_engine_config` and
`config/lora.py::LoRAConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.speculative_method import NGRAM
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import (
    is_multimodal,
    model_class,
)
from app.rules.derived.parallel import api_servers
from app.rules.derived.scheduler import max_num_batched_tokens, max_num_seqs
from app.rules.registry import rule
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag, UnsetEnvironment

AREA: Final = "lora"
_ENGINE_ARGS: Final = "vllm/engine/arg_utils.py::EngineArgs.create_engine_config"
_CLASS: Final = "vllm/config/lora.py::LoRAConfig._validate_lora_config"
_UPDATING: Final = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
_DUAL_STREAM: Final = "VLLM_LORA_ENABLE_DUAL_STREAM"
_SETTINGS: Final = (
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "lora_dtype",
    "lora_target_modules",
    "fully_sharded_loras",
    "default_mm_loras",
    "enable_tower_connector_lora",
    "specialize_active_lora",
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
    "max_lora_cls_labels",
)
_DENSE: Final = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


@rule(
    id="lora-cpu-below-gpu",
    title="Fewer adapters fit the host than a batch",
    explanation="Adapters of a batch are kept in the host's memory too, so `--max-cpu-loras` is "
    "at least `--max-loras`. Left out it is the same; 0 and below count as left out.",
    remedy="Raise `--max-cpu-loras`, or lower `--max-loras`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CLASS,
    versions=">=0.28",
    covers=("lora-cpu-below-gpu",),
    bad=(Example("vllm serve m --enable-lora --max-loras 4 --max-cpu-loras 2"),),
    good=(
        Example("vllm serve m --enable-lora --max-loras 4 --max-cpu-loras 4"),
        Example("vllm serve m --enable-lora --max-loras 4"),
    ),
)
def cpu_below_gpu(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two numbers."""
    if not config["enable_lora"]:
        return
    host, batch = config["max_cpu_loras"], config["max_loras"]
    if not isinstance(host, int) or not isinstance(batch, int) or not 0 < host < batch:
        return
    yield cpu_below_gpu.finding(
        f"--max-cpu-loras is {host}, below --max-loras, {batch}",
        location=config.place("max_cpu_loras"),
        related=tuple(p for p in (config.place("max_loras"),) if p is not None),
        fix=Fix(f"set --max-cpu-loras {batch}", (SetFlag("max_cpu_loras", batch),), safe=False),
        engine_message=f"max_cpu_loras ({host}) must be >= max_loras ({batch}).",
        evidence={"max_cpu_loras": host, "max_loras": batch},
    )


@rule(
    id="lora-cpu-ignored",
    title="A non-positive `--max-cpu-loras` counts as left out",
    explanation="0 does not keep adapters out of the host's memory: vLLM then keeps as many as "
    "`--max-loras`.",
    remedy="Leave the option out, or give a positive number.",
    severity=Severity.WARNING,
    area=AREA,
    source=_ENGINE_ARGS,
    versions=">=0.28",
    covers=("max-cpu-loras-nonpositive",),
    bad=(Example("vllm serve m --enable-lora --max-cpu-loras 0"),),
    good=(Example("vllm serve m --enable-lora --max-cpu-loras 2"),),
)
def cpu_ignored(config: ServeConfig) -> Iterator[Finding]:
    """Look for such a number."""
    host = config["max_cpu_loras"] if config["enable_lora"] else None
    if not isinstance(host, int) or host > 0:
        return
    batch = config["max_loras"]
    yield cpu_ignored.finding(
        f"--max-cpu-loras is {host}, but vLLM will use {batch}, because a number that is not "
        "positive counts as left out",
        location=config.place("max_cpu_loras"),
        fix=Fix("drop --max-cpu-loras", (RemoveFlag("max_cpu_loras"),), safe=True),
        evidence={"asked": host, "effective": batch, "dest": "max_cpu_loras"},
    )


@rule(
    id="lora-not-enabled",
    title="LoRA settings without `--enable-lora`",
    explanation="Without `--enable-lora` vLLM drops every LoRA setting without a word, and the "
    "adapters of `--lora-modules` fail when the server loads them.",
    remedy="Add `--enable-lora`, or drop the settings.",
    severity=Severity.WARNING,
    area=AREA,
    source=_ENGINE_ARGS,
    versions=">=0.28",
    covers=("lora-settings-without-enable",),
    bad=(
        Example("vllm serve m --max-lora-rank 64"),
        Example("vllm serve m --lora-modules a=/adapters/a"),
    ),
    good=(Example("vllm serve m --enable-lora --max-lora-rank 64"), Example("vllm serve m")),
)
def not_enabled(config: ServeConfig) -> Iterator[Finding]:
    """Look for settings that are given."""
    if config["enable_lora"]:
        return
    given = [dest for dest in _SETTINGS if config.given(dest)]
    adapters = config.given("lora_modules") and bool(config["lora_modules"])
    if not given and not adapters:
        return
    first = "lora_modules" if adapters else given[0]
    names = [config.catalogue.by_dest[dest].name for dest in given]
    problem = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect"
    if adapters:
        also = f", and {problem}" if names else ""
        problem = f"the adapters of --lora-modules cannot be loaded{also}"
    yield not_enabled.finding(
        f"without --enable-lora {problem}",
        location=config.place(first),
        fix=Fix("add --enable-lora", (SetFlag("enable_lora", value=True),), safe=False),
        evidence={"asked": names, "effective": None, "dest": "enable_lora"},
    )


@rule(
    id="lora-speculative-batch",
    title="The batch is too small for LoRA with speculative decoding",
    explanation="With adapters each of `--max-num-seqs` requests may verify all drafted tokens "
    "and one more in a step, and `--max-num-batched-tokens` must hold them all.",
    remedy="Raise `--max-num-batched-tokens`, lower `--max-num-seqs`, or draft fewer tokens.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ENGINE_ARGS,
    versions=">=0.28",
    covers=("lora-spec-token-budget",),
    bad=(
        Example(
            f"vllm serve m --enable-lora --max-num-seqs 1024 --max-num-batched-tokens 2048 {NGRAM}"
        ),
    ),
    good=(
        Example(
            f"vllm serve m --enable-lora --max-num-seqs 512 --max-num-batched-tokens 2048 {NGRAM}"
        ),
        Example(f"vllm serve m --max-num-seqs 1024 --max-num-batched-tokens 2048 {NGRAM}"),
    ),
)
def speculative_batch(config: ServeConfig) -> Iterator[Finding]:
    """Compare the batch with what verification may take."""
    speculation = speculation_of(config) if config["enable_lora"] else None
    tokens = None if speculation is None else speculation.tokens
    if speculation is None or tokens is None:
        return
    batch, sequences = max_num_batched_tokens(config), max_num_seqs(config)
    needed = sequences * (tokens + 1)
    if batch >= needed:
        return
    yield speculative_batch.finding(
        f"a batch has {batch} tokens, and {sequences} sequences with {tokens} drafted tokens each "
        f"take {needed}",
        location=config.place("max_num_batched_tokens") or config.place("enable_lora"),
        related=tuple(p for p in (speculation.place,) if p is not None),
        fix=Fix(
            f"set --max-num-batched-tokens {needed}",
            (SetFlag("max_num_batched_tokens", needed),),
            safe=False,
        ),
        engine_message="Consider increasing max_num_batched_tokens or decreasing "
        "num_speculative_tokens",
        evidence={"max_num_batched_tokens": batch, "needed": needed},
    )


@rule(
    id="lora-runtime-updating",
    title="Adapters cannot change at run time with several API servers",
    explanation="`VLLM_ALLOW_RUNTIME_LORA_UPDATING` lets clients load adapters. With several API "
    "servers each would know other adapters, so vLLM refuses. `-dp N` starts N API servers "
    "unless `--api-server-count` says otherwise.",
    remedy="Add `--api-server-count 1`, or unset the variable.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/entrypoints/cli/serve.py::run_multi_api_server",
    versions=">=0.28",
    covers=("runtime-lora-multi-api",),
    bad=(Example(f"{_UPDATING}=1 vllm serve m --api-server-count 2"),),
    good=(
        Example(f"{_UPDATING}=1 vllm serve m"),
        Example("vllm serve m --api-server-count 2"),
    ),
)
def runtime_updating(config: ServeConfig) -> Iterator[Finding]:
    """Count the API servers where the variable is on."""
    variable = config.variable(_UPDATING)
    if variable is None or variable.value.strip().lower() not in {"1", "true"}:
        return
    servers = api_servers(config)
    if servers <= 1 or config["headless"]:
        return
    yield runtime_updating.finding(
        f"{_UPDATING}={variable.value} does not go with {servers} API servers",
        location=variable.location,
        related=tuple(p for p in (config.place("api_server_count"),) if p is not None),
        fix=Fix("run one API server", (SetFlag("api_server_count", 1),), safe=False),
        engine_message=f"{_UPDATING} cannot be used with api_server_count > 1",
        evidence={"api_server_count": servers},
    )


@rule(
    id="lora-multimodal-defaults",
    title="Modality adapters need a multimodal model",
    explanation="`--default-mm-loras` names an adapter for each modality. For a model that takes "
    "text only vLLM refuses it, with or without `--enable-lora`.",
    remedy="Drop `--default-mm-loras`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ENGINE_ARGS,
    versions=">=0.28",
    covers=("mm-lora-on-text-model",),
    bad=(
        Example(
            """vllm serve m --enable-lora --default-mm-loras '{"image": "/adapters/i"}'""",
            model_config=_DENSE,
        ),
    ),
    good=(Example("vllm serve m --enable-lora", model_config=_DENSE),),
)
def multimodal_defaults(config: ServeConfig) -> Iterator[Finding]:
    """Look for the option on a text model."""
    if not config["default_mm_loras"] or is_multimodal(config):
        return
    yield multimodal_defaults.finding(
        f"--default-mm-loras is for multimodal models, and {model_class(config)} takes text only",
        location=config.place("default_mm_loras"),
        fix=Fix("drop --default-mm-loras", (RemoveFlag("default_mm_loras"),), safe=False),
        engine_message="Default modality-specific LoRA(s) were provided for a non multimodal model",
    )


@rule(
    id="lora-dual-stream-platform",
    title="Two streams for LoRA need CUDA or ROCm",
    explanation="`VLLM_LORA_ENABLE_DUAL_STREAM` runs adapters beside the model on a second CUDA "
    "stream.",
    remedy="Unset the variable.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CLASS,
    versions=">=0.28",
    covers=("lora-dual-stream-platform",),
    bad=(Example(f"{_DUAL_STREAM}=1 vllm serve m --enable-lora", gpu="cpu"),),
    good=(
        Example(f"{_DUAL_STREAM}=1 vllm serve m --enable-lora", gpu="NVIDIA H100"),
        Example("vllm serve m --enable-lora", gpu="cpu"),
    ),
)
def dual_stream_platform(config: ServeConfig) -> Iterator[Finding]:
    """Look for the variable on another platform."""
    if not config["enable_lora"] or not _dual_stream(config):
        return
    if machine_of(config).is_cuda_alike:
        return
    variable = config.variable(_DUAL_STREAM)
    yield dual_stream_platform.finding(
        f"{_DUAL_STREAM} needs CUDA or ROCm, and this machine has neither",
        location=None if variable is None else variable.location,
        fix=Fix(f"unset {_DUAL_STREAM}", (UnsetEnvironment(_DUAL_STREAM),), safe=True),
        engine_message="Dual CUDA streams are only supported on CUDA platforms.",
    )


@rule(
    id="lora-dual-stream-sharded",
    title="Two streams are off with fully sharded adapters",
    explanation="`--fully-sharded-loras` does not go with `VLLM_LORA_ENABLE_DUAL_STREAM`; vLLM "
    "switches the variable off.",
    remedy="Drop one of the two.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CLASS,
    versions=">=0.28",
    covers=("lora-dual-stream-sharded",),
    bad=(Example(f"{_DUAL_STREAM}=1 vllm serve m --enable-lora --fully-sharded-loras"),),
    good=(Example("vllm serve m --enable-lora --fully-sharded-loras"),),
)
def dual_stream_sharded(config: ServeConfig) -> Iterator[Finding]:
    """Look for both."""
    if not config["enable_lora"] or not config["fully_sharded_loras"] or not _dual_stream(config):
        return
    variable = config.variable(_DUAL_STREAM)
    yield dual_stream_sharded.finding(
        f"{_DUAL_STREAM}=1 is switched off, because --fully-sharded-loras does not go with it",
        location=None if variable is None else variable.location,
        fix=Fix(f"unset {_DUAL_STREAM}", (UnsetEnvironment(_DUAL_STREAM),), safe=True),
        evidence={"asked": "1", "effective": "0", "dest": _DUAL_STREAM},
    )


def _dual_stream(config: ServeConfig) -> bool:
    variable = config.variable(_DUAL_STREAM)
    if variable is None:
        return False
    try:
        return bool(int(variable.value))
    except ValueError:
        return False  # refused for that
