"""Expert parallelism, its load balancing, and elastic expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.parallel_models import DENSE, EXPERTS
from app.rules.declaration import Example
from app.rules.derived.devices import MachineKind
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import is_moe
from app.rules.derived.parallel import (
    DP,
    PCP,
    PP,
    TP,
    data_parallel_size,
    launch_of,
    number,
    since,
    size,
)
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "moe"
EP: Final = "enable_expert_parallel"
EPLB: Final = "enable_eplb"
ELASTIC: Final = "enable_elastic_ep"
_PARALLEL: Final = "vllm/config/parallel.py::ParallelConfig"
_ELASTIC: Final = (
    f"--{EP.replace('_', '-')} --{EPLB.replace('_', '-')} --{ELASTIC.replace('_', '-')} "
    "--eplb-config.use_async false"
)
WITHOUT_ELASTIC: Final = Fix("drop elastic expert parallelism", (RemoveFlag(ELASTIC),), safe=False)
WITHOUT_EPLB: Final = Fix(
    "drop the load balancing of experts",
    (RemoveFlag(EPLB), RemoveFlag(ELASTIC), RemoveFlag("eplb_config")),
    safe=False,
)


@rule(
    id="moe-no-experts",
    title="Expert parallelism was asked for and the model has no experts",
    explanation="`--enable-expert-parallel` spreads a model's experts over the GPUs; a dense model "
    "has none and vLLM refuses.",
    remedy="Drop `--enable-expert-parallel`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig._verify_with_expert_parallelism",
    bad=(Example("vllm serve m -tp 2 --enable-expert-parallel", model_config=DENSE),),
    good=(Example("vllm serve m -tp 2 --enable-expert-parallel", model_config=EXPERTS),),
    covers=("ep-on-dense",),
)
def no_experts(config: ServeConfig) -> Iterator[Finding]:
    """Ask whether there are experts."""
    if not config[EP] or is_moe(config):
        return
    yield no_experts.finding(
        "--enable-expert-parallel needs a model with experts, and this one has none",
        location=config.place(EP),
        fix=Fix("drop --enable-expert-parallel", (RemoveFlag(EP),), safe=False),
        engine_message="Number of experts in the model must be greater than 0 when expert "
        "parallelism is enabled.",
    )


@rule(
    id="moe-balancing-needs",
    title="The load balancing of experts lacks what it needs",
    explanation="`--enable-eplb` moves experts between GPUs. It needs expert parallelism, more "
    "than one rank (tensor x prefill-context x data parallel size), and CUDA or ROCm (from 0.31 "
    "also XPU).",
    remedy="Add `--enable-expert-parallel` and ranks, or drop `--enable-eplb`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}._validate_parallel_config",
    bad=(
        Example("vllm serve m -tp 2 --enable-eplb", model_config=EXPERTS),
        Example("vllm serve m --enable-eplb --enable-expert-parallel", model_config=EXPERTS),
    ),
    good=(
        Example("vllm serve m -tp 2 --enable-eplb --enable-expert-parallel", model_config=EXPERTS),
        Example("vllm serve m -dp 2 --enable-eplb --enable-expert-parallel", model_config=EXPERTS),
    ),
    covers=("eplb-needs-ep", "eplb-single-rank"),
)
def balancing_needs(config: ServeConfig) -> Iterator[Finding]:
    """Ask for platform, expert parallelism and ranks."""
    if not config[EPLB]:
        return
    machine = machine_of(config)
    fix = WITHOUT_EPLB
    if machine.kind is MachineKind.OTHER:
        raise Abstain("whether vLLM balances experts on this hardware")
    if not machine.is_cuda_alike:
        message = "is for GPUs"
        engine = "Expert parallelism load balancing is only supported on CUDA devices or ROCm"
    elif not config[EP]:
        message = "needs --enable-expert-parallel"
        engine = "enable_expert_parallel must be True to use EPLB."
        fix = Fix("add --enable-expert-parallel", (SetFlag(EP, True),), safe=False)
    else:
        ranks = size(config, TP), size(config, PCP), data_parallel_size(config)
        if ranks[0] * ranks[1] * ranks[2] > 1:
            return
        message = "needs more than one tensor, prefill-context or data-parallel rank"
        engine = (
            "EPLB requires tensor, prefill-context, or data parallelism, but got "
            f"TP={ranks[0]}, PCP={ranks[1]}, DP={ranks[2]}."
        )
    yield balancing_needs.finding(
        f"--enable-eplb {message}", location=config.place(EPLB), fix=fix, engine_message=engine
    )


@rule(
    id="moe-redundant-experts",
    title="Redundant experts without load balancing",
    explanation="Copies of experts are placed by the load balancing of experts; without "
    "`--enable-eplb` vLLM refuses a number of them.",
    remedy="Add `--enable-eplb`, or drop `num_redundant_experts`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}._validate_parallel_config",
    bad=(
        Example("vllm serve m --eplb-config '{\"num_redundant_experts\": 4}'"),
        Example("vllm serve m --eplb-config.num_redundant_experts 4"),
    ),
    good=(
        Example(
            "vllm serve m -tp 2 --enable-expert-parallel --enable-eplb "
            "--eplb-config.num_redundant_experts 4",
            model_config=EXPERTS,
        ),
        Example("vllm serve m --eplb-config.num_redundant_experts 0"),
    ),
    covers=("redundant-experts-without-eplb",),
)
def redundant(config: ServeConfig) -> Iterator[Finding]:
    """Look for a number."""
    count = config["eplb_config.num_redundant_experts"]
    if not count or config[EPLB]:
        return
    yield redundant.finding(
        f"num_redundant_experts is {count}, and --enable-eplb is not given",
        location=config.place("eplb_config"),
        fix=Fix(
            "drop num_redundant_experts",
            (RemoveFlag("eplb_config.num_redundant_experts"),),
            safe=False,
        ),
        engine_message=f"num_redundant_experts is set to {count} but EPLB is not enabled.",
    )


@rule(
    id="moe-balancing-communicator",
    title="Asynchronous balancing of experts does not go with this communicator",
    explanation="Experts are moved beside the forward pass (`use_async`, on unless said "
    "otherwise). NCCL takes no two streams at once, so `torch_nccl` and `pynccl` are refused.",
    remedy='Leave `communicator` out, use `torch_gloo` or `nixl`, or set `"use_async": false`.',
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/parallel.py::EPLBConfig._validate_eplb_config",
    bad=(
        Example('vllm serve m --eplb-config \'{"communicator": "pynccl"}\''),
        Example("vllm serve m --eplb-config.communicator torch_nccl"),
    ),
    good=(
        Example('vllm serve m --eplb-config \'{"communicator": "pynccl", "use_async": false}\''),
        Example("vllm serve m --eplb-config.communicator torch_gloo"),
    ),
    covers=("eplb-async-communicator",),
)
def communicator(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two keys."""
    given = config["eplb_config.communicator"]
    if given not in {"torch_nccl", "pynccl"} or config["eplb_config.use_async"] is False:
        return
    yield communicator.finding(
        f"asynchronous load balancing of experts does not go with the communicator {given}",
        location=config.place("eplb_config"),
        fix=Fix(
            "let vLLM choose the communicator",
            (RemoveFlag("eplb_config.communicator"),),
            safe=False,
        ),
        engine_message=f"{given} communicator is incompatible with async EPLB due to NCCL "
        "multi-stream conflicts.",
    )


@rule(
    id="moe-elastic-needs",
    title="Elastic expert parallelism is not possible here",
    explanation="Adding and removing data-parallel ranks while serving needs the load balancing of "
    "experts, no pipeline stages, and one API server over all ranks: no hybrid load balancing, "
    "and up to 0.32 no external one either.",
    remedy="Drop `--enable-elastic-ep`, or what the message names.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}.__post_init__",
    bad=(
        Example(
            "vllm serve m -tp 2 --enable-expert-parallel --enable-elastic-ep",
            model_config=EXPERTS,
        ),
        Example(f"vllm serve m -tp 2 -pp 2 {_ELASTIC}", model_config=EXPERTS),
        Example(
            f"vllm serve m -dp 4 --data-parallel-rank 1 {_ELASTIC}",
            model_config=EXPERTS,
            versions="<0.33",
        ),
        Example(
            f"vllm serve m -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2 {_ELASTIC}",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(f"vllm serve m -dp 4 {_ELASTIC}", model_config=EXPERTS),
        Example(
            f"vllm serve m -dp 4 --data-parallel-rank 1 {_ELASTIC}",
            model_config=EXPERTS,
            versions=">=0.33",
        ),
    ),
    covers=("elastic-needs-eplb", "elastic-pp", "elastic-lb"),
)
def elastic_needs(config: ServeConfig) -> Iterator[Finding]:
    """Ask for balancing, stages and mode."""
    if not config[ELASTIC]:
        return
    launch = launch_of(config)
    external_too = not since(config, "0.33")
    if not config[EPLB]:
        message = "needs --enable-eplb"
        engine = "Elastic EP is only supported with enable_eplb=True."
    elif size(config, PP) > 1:
        message = f"does not go with --pipeline-parallel-size {size(config, PP)}"
        engine = (
            "Elastic EP is not supported with pipeline parallelism "
            f"(pipeline_parallel_size={size(config, PP)})."
        )
    elif launch is not None and (launch.hybrid_lb or (launch.external_lb and external_too)):
        mode = "hybrid" if launch.hybrid_lb else "external"
        message = f"does not go with {mode} load balancing"
        names = "data_parallel_external_lb or data_parallel_hybrid_lb"
        engine = "Elastic EP is not compatible with " + (
            names if external_too else "data_parallel_hybrid_lb"
        )
    else:
        return
    yield elastic_needs.finding(
        f"--enable-elastic-ep {message}",
        location=config.place(ELASTIC),
        fix=WITHOUT_ELASTIC,
        engine_message=engine,
    )


@rule(
    id="moe-elastic-limit",
    title="The limit of elastic expert parallelism is below the size at start",
    explanation="`--elastic-ep-max-dp-size` bounds what the server can grow to. It is ignored "
    "without `--enable-elastic-ep`.",
    remedy="Raise it to `--data-parallel-size` at least.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}.__post_init__",
    versions=">=0.30",
    bad=(
        Example(f"vllm serve m -dp 4 --elastic-ep-max-dp-size 2 {_ELASTIC}", model_config=EXPERTS),
    ),
    good=(
        Example(f"vllm serve m -dp 4 --elastic-ep-max-dp-size 8 {_ELASTIC}", model_config=EXPERTS),
        Example("vllm serve m -dp 4 --elastic-ep-max-dp-size 2", model_config=EXPERTS),
    ),
    covers=("elastic-max-dp",),
)
def elastic_limit(config: ServeConfig) -> Iterator[Finding]:
    """Compare limit and size."""
    dest = "elastic_ep_max_dp_size"
    limit = number(config, dest)
    if not config[ELASTIC] or limit is None or limit >= data_parallel_size(config):
        return
    ranks = data_parallel_size(config)
    yield elastic_limit.finding(
        f"--elastic-ep-max-dp-size {limit} is below the {ranks} data-parallel ranks at start",
        location=config.place(dest) or config.place(DP),
        fix=Fix(f"raise it to {ranks}", (SetFlag(dest, ranks),), safe=False),
        engine_message="--elastic-ep-max-dp-size must be greater than or equal to the initial "
        f"data_parallel_size ({ranks}).",
    )
