"""Parallel sizes against the model and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.parallel_models import DENSE, ENCODER, EXPERTS, LATENT
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import (
    has_ability,
    num_attention_heads,
    num_kv_heads,
    supports_pp,
    uses_mla,
)
from app.rules.derived.parallel import (
    DCP,
    EXECUTOR,
    PCP,
    PP,
    TP,
    data_parallel_size,
    since,
    size,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "parallel"
_MODEL: Final = "vllm/config/model.py::ModelConfig.verify_with_parallel_config"
_PARALLEL: Final = "vllm/config/parallel.py::ParallelConfig._validate_parallel_config"
_KNOWN_EXECUTORS: Final = frozenset({"ray", "mp", "external_launcher"})
_STATES: Final = {
    "architectures": ["FalconMambaForCausalLM"],
    "model_type": "falcon_mamba",
    "conv_kernel": 4,
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "num_hidden_layers": 64,
    "state_size": 16,
    "time_step_rank": 256,
    "torch_dtype": "bfloat16",
    "vocab_size": 65024,
}


def set_size(dest: str, value: int, what: str) -> Fix:
    """Give the edit that sets a size to something else than was asked for."""
    return Fix(f"use {what} {value}", (SetFlag(dest, value),), safe=False)


@rule(
    id="parallel-heads-by-tensor",
    title="The attention heads cannot be split over the tensor-parallel GPUs",
    explanation="Tensor parallelism gives each GPU the same number of attention heads, so their "
    "number has to be a multiple of `--tensor-parallel-size`.",
    remedy="Use one of the sizes that the message lists, or add `--pipeline-parallel-size`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_MODEL,
    bad=(
        Example("vllm serve m -tp 3", model_config=DENSE),
        Example("vllm serve m -tp 5", model_config=EXPERTS),
    ),
    good=(
        Example("vllm serve m -tp 4", model_config=DENSE),
        Example("vllm serve m -tp 8", model_config=EXPERTS, note="more than key-value heads"),
    ),
    covers=("heads-not-divisible-by-tp",),
)
def heads(config: ServeConfig) -> Iterator[Finding]:
    """Compare the number of heads with the size."""
    ranks = size(config, TP)
    if ranks == 1:
        return
    count = num_attention_heads(config)
    if count % ranks == 0:
        return
    fitting = [n for n in range(1, min(count, 64) + 1) if count % n == 0]
    nearest = max(n for n in fitting if n < ranks)
    yield heads.finding(
        f"the model has {count} attention heads, which {ranks} tensor-parallel GPUs cannot share "
        f"equally; sizes that do: {', '.join(map(str, fitting))}",
        location=config.place(TP),
        fix=set_size(TP, nearest, "tensor parallel size"),
        engine_message=f"Total number of attention heads ({count}) must be divisible by tensor "
        f"parallel size ({ranks}).",
        evidence={"heads": count, "tensor_parallel_size": ranks, "fitting": fitting},
    )


@rule(
    id="parallel-pipeline-model",
    title="The model cannot be cut into pipeline stages",
    explanation="Pipeline parallelism needs a model class that implements vLLM's `SupportsPP`.",
    remedy="Use tensor parallelism instead of `--pipeline-parallel-size`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_MODEL,
    bad=(Example("vllm serve m -pp 2", model_config=ENCODER),),
    good=(Example("vllm serve m -pp 2", model_config=DENSE),),
    covers=("pp-model-unsupported",),
)
def pipeline_model(config: ServeConfig) -> Iterator[Finding]:
    """Ask what the model class can do."""
    stages = size(config, PP)
    if stages == 1 or supports_pp(config):
        return
    yield pipeline_model.finding(
        f"--pipeline-parallel-size {stages} does not go with this model: its class does not "
        "support pipeline parallelism",
        location=config.place(PP),
        fix=Fix("drop pipeline parallelism", (RemoveFlag(PP),), safe=False),
        engine_message="Pipeline parallelism is not supported for this model. Supported models "
        "implement the `SupportsPP` interface.",
    )


@rule(
    id="parallel-pipeline-executor",
    title="The executor cannot run pipeline stages",
    explanation="Pipeline parallelism needs the executor `mp`, `ray` or `external_launcher`; "
    "`uni` has one process. A custom executor class that is named by its path counts as unable, "
    "even if it declares `supports_pp`.",
    remedy="Leave `--distributed-executor-backend` out, or use `mp`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/engine/arg_utils.py::EngineArgs._check_feature_supported",
    bad=(Example("vllm serve m -pp 2 --distributed-executor-backend uni"),),
    good=(
        Example("vllm serve m -pp 2 --distributed-executor-backend mp"),
        Example("vllm serve m -pp 2"),
    ),
    covers=("pp-unsupported-executor", "unsupported-feature-helper"),
)
def pipeline_executor(config: ServeConfig) -> Iterator[Finding]:
    """Look at the executor that was asked for."""
    backend = config[EXECUTOR]
    if size(config, PP) == 1 or not isinstance(backend, str) or backend in _KNOWN_EXECUTORS:
        return
    name = "Pipeline Parallelism without Ray distributed executor or multiprocessing executor or"
    yield pipeline_executor.finding(
        f"--pipeline-parallel-size {size(config, PP)} does not go with the executor {backend}",
        location=config.place(EXECUTOR),
        fix=Fix("let vLLM choose the executor", (RemoveFlag(EXECUTOR),), safe=False),
        engine_message=f"{name} external launcher is not supported.",
    )


@rule(
    id="parallel-executor-unknown",
    title="The executor has a name that vLLM does not know",
    explanation="`--distributed-executor-backend` takes `mp`, `ray`, `uni`, `external_launcher` or "
    "the dotted path of a class. There are no choices on the command line: a misspelt name fails "
    "later, as a path without a dot (`not enough values to unpack`).",
    remedy="Use one of the names, or leave the option out.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/v1/executor/abstract.py::Executor.get_class",
    bad=(Example("vllm serve m -tp 2 --distributed-executor-backend multiprocessing"),),
    good=(Example("vllm serve m -tp 2 --distributed-executor-backend mp"),),
)
def executor_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Refuse a name without a dot."""
    backend = config[EXECUTOR]
    if not isinstance(backend, str) or backend in _KNOWN_EXECUTORS | {"uni"} or "." in backend:
        return
    yield executor_unknown.finding(
        f"{backend!r} is no executor: use mp, ray, uni, external_launcher or the dotted path of a "
        "class",
        location=config.place(EXECUTOR),
        fix=Fix("let vLLM choose the executor", (RemoveFlag(EXECUTOR),), safe=False),
        engine_message="not enough values to unpack (expected 2, got 1)",
    )


@rule(
    id="parallel-context-heads",
    title="Decode context parallelism does not fit the model's heads",
    explanation="Without latent attention, decode context parallelism uses the tensor-parallel "
    "GPUs that would hold copies of the key-value heads. So the tensor-parallel size has to exceed "
    "the number of key-value heads, their ratio bounds the size, and the query heads per "
    "key-value head must be a multiple of it.",
    remedy="Raise `--tensor-parallel-size`, or lower `--decode-context-parallel-size`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_MODEL,
    bad=(
        Example("vllm serve m -tp 4 -dcp 2", model_config=DENSE),
        Example("vllm serve m -tp 8 -dcp 4", model_config=EXPERTS),
        Example(
            "vllm serve m -tp 6 -dcp 2",
            model_config={
                **DENSE,
                "hidden_size": 768,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
            },
            note="3 query heads a key-value head",
        ),
        Example("vllm serve m -tp 2 -dcp 2", model_config=_STATES, note="no heads at all"),
    ),
    good=(
        Example("vllm serve m -tp 8 -dcp 2", model_config=EXPERTS),
        Example("vllm serve m -tp 8 -dcp 4", model_config=LATENT, note="latent attention"),
        Example("vllm serve m -tp 4", model_config=DENSE),
    ),
    covers=("dcp-tp-vs-kv-heads", "dcp-too-large", "dcp-q-per-kv"),
)
def context_heads(config: ServeConfig) -> Iterator[Finding]:
    """Compare sizes with key-value heads in vLLM's order."""
    context, ranks = size(config, DCP), size(config, TP)
    if context == 1 or uses_mla(config):
        return
    kv_heads = num_kv_heads(config)
    if kv_heads < 1:
        yield context_heads.finding(
            f"--decode-context-parallel-size {context} needs key-value heads, which the model does "
            "not have; vLLM divides by their number",
            location=config.place(DCP),
            fix=set_size(DCP, 1, "decode context parallel size"),
            engine_message="integer division or modulo by zero",
        )
        return
    most, queries = ranks // kv_heads, num_attention_heads(config) // kv_heads
    if ranks <= kv_heads:
        message = (
            f"--decode-context-parallel-size {context} needs more tensor-parallel GPUs ({ranks}) "
            f"than the model has key-value heads ({kv_heads})"
        )
        engine = (
            "Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` "
            f"({ranks}) to be greater than the model's total number of KV heads ({kv_heads})."
        )
    elif context > most:
        message = (
            f"--decode-context-parallel-size {context} exceeds {most}: {ranks} tensor-parallel "
            f"GPUs over {kv_heads} key-value heads"
        )
        engine = (
            f"`--decode-context-parallel-size` ({context}) exceeds the maximum supported value "
            f"({most}) for `--tensor-parallel-size` ({ranks}) and {kv_heads} model KV heads."
        )
    elif queries % context:
        message = (
            f"{queries} query heads a key-value head cannot be shared equally by "
            f"--decode-context-parallel-size {context}"
        )
        engine = (
            f"The model's number of query heads per KV head ({queries}) must be divisible by "
            f"`--decode-context-parallel-size` ({context}) for GQA/MQA."
        )
    else:
        return
    fitting = [n for n in range(1, most + 1) if queries % n == 0 and ranks % n == 0] or [1]
    yield context_heads.finding(
        message,
        location=config.place(DCP),
        fix=set_size(DCP, max(fitting), "decode context parallel size"),
        engine_message=engine,
        evidence={"kv_heads": kv_heads, "tensor_parallel_size": ranks, "fitting": fitting},
    )


@rule(
    id="parallel-context-sizes",
    title="The context parallel sizes do not fit each other",
    explanation="Decode context parallelism reuses the tensor-parallel GPUs, so its size divides "
    "theirs. With prefill context parallelism it is off, spans that axis, or spans both.",
    remedy="Use one of the sizes that the message lists.",
    severity=Severity.ERROR,
    area=AREA,
    source=_PARALLEL,
    bad=(
        Example("vllm serve m -tp 4 -dcp 3", model_config=LATENT),
        Example("vllm serve m -tp 4 -pcp 2 -dcp 4", model_config=LATENT),
    ),
    good=(
        Example("vllm serve m -tp 4 -dcp 4", model_config=LATENT),
        Example("vllm serve m -tp 4 -pcp 2 -dcp 8", model_config=LATENT),
    ),
    covers=("dcp-divides-tp", "dcp-with-pcp"),
)
def context_sizes(config: ServeConfig) -> Iterator[Finding]:
    """Compare the three sizes."""
    context = size(config, DCP)
    if context == 1:
        return
    ranks, prefill = size(config, TP), size(config, PCP)
    if prefill == 1:
        fitting = [n for n in range(1, ranks + 1) if ranks % n == 0]
        engine = f"tp_size={ranks} must be divisible by dcp_size={context}."
    else:
        fitting = sorted({1, prefill, ranks * prefill})
        engine = (
            "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full "
            f"TP x PCP axis. Got TP={ranks}, PCP={prefill}, DCP={context}; valid DCP sizes are "
            f"{fitting}."
        )
    if context in fitting:
        return
    nearest = max(n for n in fitting if n < context)
    yield context_sizes.finding(
        f"--decode-context-parallel-size {context} does not fit --tensor-parallel-size {ranks} "
        f"and --prefill-context-parallel-size {prefill}; sizes that do: "
        f"{', '.join(map(str, fitting))}",
        location=config.place(DCP),
        fix=set_size(DCP, nearest, "decode context parallel size"),
        engine_message=engine,
        evidence={"fitting": fitting},
    )


@rule(
    id="parallel-context-exchange",
    title="The all-to-all exchange needs decode context parallelism",
    explanation="0.28 refuses `--dcp-comm-backend a2a` where decode context parallelism is off; "
    "later releases ignore it.",
    remedy="Drop the option, or set `--decode-context-parallel-size`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_PARALLEL,
    versions="<0.29",
    bad=(Example("vllm serve m --dcp-comm-backend a2a", model_config=LATENT),),
    good=(Example("vllm serve m -tp 4 -dcp 4 --dcp-comm-backend a2a", model_config=LATENT),),
)
def context_exchange(config: ServeConfig) -> Iterator[Finding]:
    """Refuse the option alone."""
    if config["dcp_comm_backend"] != "a2a" or size(config, DCP) > 1:
        return
    yield context_exchange.finding(
        "--dcp-comm-backend a2a needs --decode-context-parallel-size above 1",
        location=config.place("dcp_comm_backend"),
        fix=Fix("drop the option, which has no use here", (RemoveFlag("dcp_comm_backend"),), True),
        engine_message="dcp_comm_backend='a2a' requires decode_context_parallel_size > 1.",
    )


@rule(
    id="parallel-prefill-context-with-data",
    title="Prefill context parallelism does not go with data parallelism yet",
    explanation="0.28 and 0.29 refuse the two together; 0.30 does so on CUDA and on ROCm.",
    remedy="Drop one of them, or use 0.31 or newer.",
    severity=Severity.ERROR,
    area=AREA,
    source=_PARALLEL,
    versions="<0.31",
    bad=(Example("vllm serve m -pcp 2 -dp 2", model_config=LATENT),),
    good=(Example("vllm serve m -pcp 2", model_config=LATENT),),
)
def prefill_with_data(config: ServeConfig) -> Iterator[Finding]:
    """Refuse the two together; 0.30 leaves that to the platform."""
    if size(config, PCP) == 1 or data_parallel_size(config) == 1:
        return
    by_platform, machine = since(config, "0.30"), machine_of(config)
    if by_platform and not machine.is_cuda_alike:
        return
    name = "ROCm" if machine.is_rocm else "CUDA"
    yield prefill_with_data.finding(
        f"--prefill-context-parallel-size {size(config, PCP)} does not go with "
        f"{data_parallel_size(config)} data-parallel ranks",
        location=config.place(PCP),
        fix=Fix("drop prefill context parallelism", (RemoveFlag(PCP),), safe=False),
        engine_message=f"PCP does not support data parallelism{f' on {name}' * by_platform} yet.",
    )


@rule(
    id="parallel-hyper-connections",
    title="--enable-hc-sp is not possible here",
    explanation="Splitting hyper-connections over the sequence needs CUDA (0.33: or ROCm), a model "
    "class that supports it, and no pipeline stages. With one tensor-parallel GPU it has no "
    "effect.",
    remedy="Drop `--enable-hc-sp`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_MODEL,
    versions=">=0.32",
    bad=(Example("vllm serve m -tp 2 --enable-hc-sp", model_config=DENSE),),
    good=(Example("vllm serve m --enable-hc-sp", model_config=DENSE),),
    covers=("hc-sp-model", "hc-sp-pp"),
)
def hyper_connections(config: ServeConfig) -> Iterator[Finding]:
    """Ask for platform, class and stages."""
    if not config["enable_hc_sp"] or size(config, TP) == 1:
        return
    machine = machine_of(config)
    either = since(config, "0.33")
    if not (machine.is_cuda_alike if either else machine.is_cuda):
        platforms = "CUDA or ROCm" if either else "CUDA"
        reason, engine = f"needs {platforms}", f"--enable-hc-sp currently requires {platforms}"
    elif not has_ability(config, "supports_hc_sp"):
        reason = "is not supported by this model's class"
        engine = "--enable-hc-sp is not supported for this model"
    elif size(config, PP) != 1:
        reason = f"does not go with --pipeline-parallel-size {size(config, PP)}"
        engine = "--enable-hc-sp requires PP=1"
    else:
        return
    yield hyper_connections.finding(
        f"--enable-hc-sp {reason}",
        location=config.place("enable_hc_sp"),
        fix=Fix("drop --enable-hc-sp", (RemoveFlag("enable_hc_sp"),), safe=False),
        engine_message=engine,
    )
