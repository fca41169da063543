"""Exchange of tokens between experts, and microbatching."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.moe_experts import AREA, EPLB, WITHOUT_EPLB
from app.rules.configuration.parallel_models import DENSE, EXPERTS, LATENT
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import (
    architectures,
    checkpoint_quantization,
    is_moe,
    model_dtype,
    requested_quantization,
)
from app.rules.derived.parallel import (
    ALL2ALL,
    PCP,
    SELF_DISPATCHING,
    all2all_backend,
    data_parallel_size,
    microbatches,
    moe_backend,
    number,
    since,
    size,
    splits_sequence_in_experts,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_MICROBATCHING: Final = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
_PLACEMENT: Final = "expert_placement_strategy"
_DEEP_GEMM: Final = "flashinfer_moe_ep_mega_deep_gemm"
_LOW_LATENCY: Final = "--all2all-backend deepep_low_latency"
# `config/kernel.py::FLASHINFER_MOE_EP_ARCHITECTURES`; the last one from 0.30 on.
_DEEPSEEK_V4: Final = ("DeepseekV4ForCausalLM", "DeepSeekV4MTPModel", "DeepseekV41ForCausalLM")


@rule(
    id="moe-exchange-removed",
    title="The all-to-all backend was removed",
    explanation="`naive` and `pplx` are still taken and replaced by `allgather_reducescatter`, "
    "with a line in the log.",
    remedy="Drop the option, or choose a backend that exists.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/parallel.py::ParallelConfig._validate_parallel_config",
    bad=(Example("vllm serve m --all2all-backend pplx", model_config=EXPERTS),),
    good=(Example("vllm serve m --all2all-backend allgather_reducescatter", model_config=EXPERTS),),
    covers=("a2a-removed-backend",),
)
def removed(config: ServeConfig) -> Iterator[Finding]:
    """Tell what is used."""
    asked = config[ALL2ALL]
    if asked in {"naive", "pplx"}:
        yield removed.finding(
            f"vLLM will use {all2all_backend(config)}, because the all-to-all backend {asked} was "
            "removed",
            location=config.place(ALL2ALL),
            fix=Fix("drop the option", (RemoveFlag(ALL2ALL),), safe=True),
            evidence={"asked": asked, "effective": all2all_backend(config), "dest": ALL2ALL},
        )


@rule(
    id="moe-microbatch-backend",
    title="Microbatching needs another all-to-all backend",
    explanation="`--enable-dbo` and `--ubatch-size` above 1 overlap computing with the exchange of "
    "tokens, which only some backends can. The default, `allgather_reducescatter`, is not one of "
    "them (0.33 takes it on ROCm), so `--enable-dbo` alone is always refused on CUDA.",
    remedy="Add `--all2all-backend deepep_low_latency`, `deepep_high_throughput` or `nixl_ep`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example("vllm serve m --enable-dbo", model_config=EXPERTS),
        Example("vllm serve m --ubatch-size 4 --all2all-backend naive", model_config=EXPERTS),
    ),
    good=(
        Example(f"vllm serve m --enable-dbo {_LOW_LATENCY}", model_config=EXPERTS),
        Example("vllm serve m --ubatch-size 1", model_config=EXPERTS),
    ),
    covers=("dbo-backend",),
)
def microbatch_backend(config: ServeConfig) -> Iterator[Finding]:
    """Compare the backend with those that can."""
    machine = machine_of(config)
    # The CPU platform switches --enable-dbo off before.
    batches = (number(config, "ubatch_size") or 0) if machine.is_cpu else microbatches(config)
    if batches < 2:
        return
    able: tuple[str, ...] = _MICROBATCHING
    if since(config, "0.33") and machine.is_rocm:
        able = (*able, "allgather_reducescatter")
    backend = all2all_backend(config)
    if backend in able:
        return
    dest = "enable_dbo" if config["enable_dbo"] else "ubatch_size"
    yield microbatch_backend.finding(
        f"--{dest.replace('_', '-')} needs --all2all-backend {', '.join(able)}, and it is {backend}"
        + ("" if config.given(ALL2ALL) else ", the default"),
        location=config.place(dest),
        fix=Fix(
            "run without microbatches",
            (RemoveFlag("enable_dbo"), RemoveFlag("ubatch_size")),
            safe=False,
        ),
        engine_message="Microbatching currently only supports the",
        evidence={"all2all_backend": backend, "able": list(able)},
    )


@rule(
    id="moe-microbatch-thresholds",
    title="A token threshold is below the number of microbatches",
    explanation="A batch that is cut into n microbatches has at least n tokens, so both thresholds "
    "from which batches are cut have to be n or more.",
    remedy="Raise the threshold to the number of microbatches.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/parallel.py::ParallelConfig._verify_args",
    versions=">=0.30",
    bad=(
        Example(
            f"vllm serve m --enable-dbo {_LOW_LATENCY} --dbo-decode-token-threshold 1",
            model_config=EXPERTS,
        ),
        Example(f"vllm serve m --ubatch-size 64 {_LOW_LATENCY}", model_config=EXPERTS),
    ),
    good=(Example(f"vllm serve m --enable-dbo {_LOW_LATENCY}", model_config=EXPERTS),),
    covers=("dbo-thresholds",),
)
def microbatch_thresholds(config: ServeConfig) -> Iterator[Finding]:
    """Compare both thresholds with the number."""
    batches = microbatches(config)
    if batches < 2:
        return
    short = [
        dest
        for dest in ("dbo_decode_token_threshold", "dbo_prefill_token_threshold")
        if (number(config, dest) or 0) < batches
    ]
    if not short:
        return
    names = " and ".join(f"--{d.replace('_', '-')} {config[d]}" for d in short)
    place = next((p for p in map(config.place, short) if p is not None), None)
    yield microbatch_thresholds.finding(
        f"{names} must be {batches} at least, the number of microbatches",
        location=place or config.place("ubatch_size") or config.place("enable_dbo"),
        fix=Fix(f"raise to {batches}", tuple(SetFlag(d, batches) for d in short), safe=False),
        engine_message="dbo_decode_token_threshold and dbo_prefill_token_threshold must be at "
        f"least the number of microbatches ({batches}).",
    )


@rule(
    id="moe-self-dispatching",
    title="The MoE backend exchanges tokens itself",
    explanation="`flashinfer_moe_ep_…` kernels dispatch and combine inside; vLLM runs no "
    "all-to-all around them and refuses a backend for it.",
    remedy="Drop `--all2all-backend`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/kernel.py::bind_passthrough_all2all_backend",
    versions=">=0.32",
    bad=(
        Example(
            "vllm serve m --moe-backend flashinfer_moe_ep_cutedsl --all2all-backend deepep_v2",
            model_config=EXPERTS,
        ),
    ),
    good=(Example("vllm serve m --moe-backend flashinfer_moe_ep_cutedsl", model_config=EXPERTS),),
    covers=("moe-ep-with-a2a",),
)
def self_dispatching(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two backends."""
    kernels, exchange = moe_backend(config), all2all_backend(config)
    if kernels not in SELF_DISPATCHING or exchange == "passthrough":
        return
    yield self_dispatching.finding(
        f"the MoE backend {kernels} exchanges tokens itself and does not go with "
        f"--all2all-backend {exchange}",
        location=config.place(ALL2ALL),
        fix=Fix("drop --all2all-backend", (RemoveFlag(ALL2ALL),), safe=False),
        engine_message=f"moe_backend={kernels!r} dispatches and combines itself and cannot be "
        f"paired with all2all_backend={exchange!r}",
    )


@rule(
    id="moe-backend-model",
    title="The MoE backend is for DeepSeek V4",
    explanation="`flashinfer_moe_ep_mega_deep_gemm` (up to 0.31 also "
    "`flashinfer_moe_ep_mega_cutedsl`) is wired into the DeepSeek V4 classes only.",
    remedy="Use another `--moe-backend`, or `auto`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/kernel.py::validate_flashinfer_moe_ep_model",
    versions=">=0.29",
    bad=(
        Example(f"vllm serve m --moe-backend {_DEEP_GEMM}", model_config=EXPERTS),
        Example(
            f'vllm serve m --kernel-config \'{{"moe_backend": "{_DEEP_GEMM}"}}\'',
            model_config=DENSE,
        ),
        Example(
            "vllm serve m --moe-backend flashinfer_moe_ep_mega_cutedsl",
            model_config=EXPERTS,
            versions="<0.32",
        ),
    ),
    good=(Example("vllm serve m --moe-backend triton", model_config=EXPERTS),),
    covers=("moe-ep-deepgemm-model",),
)
def backend_model(config: ServeConfig) -> Iterator[Finding]:
    """Compare the backend with the classes it is for."""
    kernels = moe_backend(config)
    both = {_DEEP_GEMM, "flashinfer_moe_ep_mega_cutedsl"}
    if kernels not in ({_DEEP_GEMM} if since(config, "0.32") else both):
        return
    wired = _DEEPSEEK_V4 if since(config, "0.30") else _DEEPSEEK_V4[:2]
    names = architectures(config)
    if any(name in wired for name in names):
        return
    from_flag = config["moe_backend"] not in (None, "auto")
    dest = "moe_backend" if from_flag else "kernel_config"
    drop = dest if from_flag else "kernel_config.moe_backend"
    yield backend_model.finding(
        f"the MoE backend {kernels} is for DeepSeek V4, not for {', '.join(names)}",
        location=config.place(dest),
        fix=Fix("let vLLM choose the backend", (RemoveFlag(drop),), safe=False),
        engine_message=f"moe_backend={kernels!r} is only supported for DeepSeek-V4 models",
    )


@rule(
    id="moe-moonep",
    title="The moonep backend does not go with this server",
    explanation="MoonEP moves BF16 weights without quantisation, in the order that they are "
    "loaded: no load balancing of experts, linear placement.",
    remedy="Use another `--all2all-backend`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    versions=">=0.31",
    bad=(
        Example("vllm serve m --all2all-backend moonep", model_config=LATENT),
        Example("vllm serve m --all2all-backend moonep --dtype float16", model_config=EXPERTS),
        Example(
            "vllm serve m --all2all-backend moonep --expert-placement-strategy round_robin",
            model_config=EXPERTS,
        ),
        Example(
            "vllm serve m -tp 2 --all2all-backend moonep --enable-eplb --enable-expert-parallel",
            model_config=EXPERTS,
        ),
    ),
    good=(Example("vllm serve m --all2all-backend moonep", model_config=EXPERTS),),
    covers=("moonep-quantised", "moonep-dtype", "moonep-eplb", "moonep-placement"),
)
def moonep(config: ServeConfig) -> Iterator[Finding]:
    """Ask what it cannot do, the cheap questions first."""
    if config[ALL2ALL] != "moonep":
        return
    fix = Fix("drop --all2all-backend", (RemoveFlag(ALL2ALL),), safe=False)
    if config[EPLB]:
        message, fix = "has no load balancing of experts", WITHOUT_EPLB
        engine = "The moonep all2all backend does not support EPLB yet"
    elif config[_PLACEMENT] not in (None, "linear"):
        message = f"needs linear placement, not {config[_PLACEMENT]}"
        engine = "The moonep all2all backend requires linear expert placement"
        fix = Fix("use linear placement", (RemoveFlag(_PLACEMENT),), safe=False)
    elif requested_quantization(config) or checkpoint_quantization(config) is not None:
        message = "is for weights without quantisation"
        engine = "The moonep all2all backend currently supports unquantized BF16 models only"
    elif model_dtype(config) != "bfloat16":
        message = f"is for bfloat16, not {model_dtype(config)}"
        engine = "The moonep all2all backend currently supports BF16 models only"
    else:
        return
    yield moonep.finding(
        f"--all2all-backend moonep {message}",
        location=config.place(ALL2ALL),
        fix=fix,
        engine_message=engine,
    )


@rule(
    id="moe-exchange-without-graphs",
    title="The all-to-all backend switches CUDA graphs off",
    explanation="The kernels of `deepep_high_throughput` (with several data-parallel ranks) and "
    "`moonep` cannot be captured, so vLLM runs without CUDA graphs, told by a line in the log.",
    remedy="Use `deepep_low_latency` or `nixl_ep` for decoding, or add `--enforce-eager`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/compilation.py::CompilationConfig.set_splitting_ops_for_v1",
    bad=(
        Example(
            "vllm serve m -dp 2 --all2all-backend deepep_high_throughput", model_config=EXPERTS
        ),
        Example(
            "vllm serve m -dp 2 --all2all-backend moonep", model_config=EXPERTS, versions=">=0.31"
        ),
    ),
    good=(
        Example("vllm serve m -dp 2 --all2all-backend deepep_low_latency", model_config=EXPERTS),
        Example(
            "vllm serve m -dp 2 --enforce-eager --all2all-backend deepep_high_throughput",
            model_config=EXPERTS,
        ),
    ),
    covers=("deepep-ht-no-cudagraph", "moonep-eager"),
)
def without_graphs(config: ServeConfig) -> Iterator[Finding]:
    """Ask whether tokens are exchanged at all."""
    backend = config[ALL2ALL]
    if backend not in {"deepep_high_throughput", "moonep"} or config["enforce_eager"]:
        return
    if config["compilation_config.cudagraph_mode"] in {"NONE", 0}:
        return
    ranks = data_parallel_size(config)
    if backend == "moonep":
        wide = config["enable_expert_parallel"] and size(config, PCP) > 1
        exchanges = ranks > 1 or wide or splits_sequence_in_experts(config)
    else:
        exchanges = ranks > 1 and is_moe(config)
    if exchanges:
        yield without_graphs.finding(
            f"vLLM will run without CUDA graphs, because --all2all-backend {backend} cannot be "
            "captured",
            location=config.place(ALL2ALL),
            evidence={"asked": None, "effective": "NONE", "dest": "compilation_config"},
        )
