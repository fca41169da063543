"""Data-parallel ranks, local sizes and who balances the load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.parallel_models import DENSE, EXPERTS
from app.rules.declaration import Example
from app.rules.derived.model import is_moe
from app.rules.derived.parallel import (
    DP,
    EXECUTOR,
    LOCAL,
    data_parallel_size,
    is_multi_port,
    launch_of,
    number,
    since,
    size,
    takes_dp_from_environment,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "parallel-dp"
RANK: Final = "data_parallel_rank"
START: Final = "data_parallel_start_rank"
EXTERNAL: Final = "data_parallel_external_lb"
HYBRID: Final = "data_parallel_hybrid_lb"
BACKEND: Final = "data_parallel_backend"
ARGUMENTS: Final = "vllm/engine/arg_utils.py::EngineArgs.create_engine_config"
_PARALLEL: Final = "vllm/config/parallel.py::ParallelConfig"
_INVALID: Final = "Invalid data-parallel launch options:"
# Every option that makes a server one of several data-parallel ranks.
_ALL: Final = (DP, LOCAL, RANK, START, EXTERNAL, HYBRID, "data_parallel_multi_port_external_lb")
WITHOUT_DP: Final = Fix(
    "drop data parallelism", tuple(RemoveFlag(dest) for dest in _ALL), safe=False
)


def asks_external(config: ServeConfig) -> bool:
    """Whether somebody else balances the load over ranks, as the options say it."""
    return bool(config[EXTERNAL]) or config[RANK] is not None or is_multi_port(config)


@rule(
    id="parallel-dp-modes",
    title="More than one mode of data-parallel load balancing",
    explanation="A server is in one mode: external (`--data-parallel-external-lb` or "
    "`--data-parallel-rank`), hybrid (`--data-parallel-hybrid-lb` or "
    "`--data-parallel-start-rank`) or multi-port.",
    remedy="Keep the options of one mode.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/entrypoints/cli/serve.py::ServeSubcommand.cmd",
    bad=(
        Example(
            "vllm serve m -dp 4 --data-parallel-rank 0 --data-parallel-hybrid-lb",
            model_config=EXPERTS,
        ),
        Example(
            "vllm serve m -dp 4 --data-parallel-external-lb --data-parallel-start-rank 1",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example("vllm serve m -dp 4 --data-parallel-rank 1", model_config=EXPERTS),
        Example(
            "vllm serve m -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    covers=("dp-lb-modes-exclusive", "hybrid-and-external-lb"),
)
def modes(config: ServeConfig) -> Iterator[Finding]:
    """Count the modes."""
    if config["grpc"]:
        return
    external = bool(config[EXTERNAL]) or config[RANK] is not None
    multi_port = is_multi_port(config)
    hybrid = bool(config[HYBRID]) or (not multi_port and config[START] is not None)
    if external + hybrid + multi_port < 2:
        return
    dests = [dest for dest in (HYBRID, START, EXTERNAL, RANK) if config.given(dest)]
    drop = (HYBRID, START) if external and not multi_port else (EXTERNAL, RANK, HYBRID)
    names = " and ".join(f"--{dest.replace('_', '-')}" for dest in dests)
    yield modes.finding(
        f"{names or 'these options'} ask for more than one mode of load balancing",
        location=config.place(dests[0]) if dests else None,
        fix=Fix("keep one mode", tuple(RemoveFlag(dest) for dest in drop), safe=False),
        engine_message="Cannot use more than one data parallel load balancing mode.",
    )


@rule(
    id="parallel-dp-external-rank",
    title="External load balancing needs the rank of this server",
    explanation="Each server is one rank. `--data-parallel-external-lb` does not say which; over "
    "several nodes it follows from `--node-rank`, from 0.31 on only if `--nnodes` is a multiple "
    "of the data-parallel size.",
    remedy="Set `--data-parallel-rank`.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(
        Example("vllm serve m -dp 4 --data-parallel-external-lb", model_config=EXPERTS),
        Example(
            "vllm serve m -dp 4 --data-parallel-external-lb --nnodes 2",
            model_config=EXPERTS,
            versions=">=0.31",
        ),
    ),
    good=(
        Example("vllm serve m -dp 4 --data-parallel-external-lb --nnodes 4", model_config=EXPERTS),
        Example(
            "vllm serve m -dp 4 --data-parallel-external-lb --data-parallel-rank 3",
            model_config=EXPERTS,
        ),
        Example(
            "vllm serve m -dp 4 --data-parallel-external-lb --nnodes 2",
            model_config=EXPERTS,
            versions="<0.31",
        ),
    ),
    covers=("external-lb-needs-rank", "node-rank-ambiguous"),
)
def external_rank(config: ServeConfig) -> Iterator[Finding]:
    """Look for a rank, or nodes to infer it from."""
    if not config[EXTERNAL] or config[RANK] is not None or is_multi_port(config):
        return
    ranks, nodes = size(config, DP), size(config, "nnodes")
    if ranks > 1 and nodes > 1:
        if not since(config, "0.31") or nodes % ranks == 0:
            return
        message = (
            f"--node-rank does not say which of the {ranks} data-parallel ranks this is, as "
            f"--nnodes {nodes} is no multiple of them"
        )
        engine = (
            f"{_INVALID} `--node-rank` cannot unambiguously identify external data-parallel ranks"
        )
    else:
        message = "--data-parallel-external-lb needs --data-parallel-rank"
        engine = f"{_INVALID} `--data-parallel-external-lb` requires a data-parallel rank."
    yield external_rank.finding(
        message,
        location=config.place(EXTERNAL),
        fix=Fix("be rank 0", (SetFlag(RANK, 0),), safe=False)
        if ranks > 1
        else Fix("drop the mode", (RemoveFlag(EXTERNAL),), safe=False),
        engine_message=engine,
    )


@rule(
    id="parallel-dp-external-local",
    title="External load balancing goes with one rank a server",
    explanation="A server that is one data-parallel rank has a local size of 1.",
    remedy="Leave `--data-parallel-size-local` out, or use `--data-parallel-start-rank` for "
    "several ranks.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(
        Example(
            "vllm serve m -dp 4 --data-parallel-rank 1 --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(
            "vllm serve m -dp 4 --data-parallel-rank 1 --data-parallel-size-local 1",
            model_config=EXPERTS,
        ),
    ),
    covers=("external-lb-local-size",),
)
def external_local(config: ServeConfig) -> Iterator[Finding]:
    """Compare the local size with 1."""
    local = number(config, LOCAL)
    if local in (None, 1) or is_multi_port(config):
        return
    if config[EXTERNAL] or config[RANK] is not None:
        yield external_local.finding(
            f"--data-parallel-size-local {local} does not go with external load balancing, where "
            "each server is one rank",
            location=config.place(LOCAL),
            fix=Fix("leave the local size out", (RemoveFlag(LOCAL),), safe=False),
            engine_message=f"{_INVALID} an external data-parallel rank requires "
            f"`--data-parallel-size-local 1`; got {local}.",
        )


@rule(
    id="parallel-dp-hybrid-local",
    title="Hybrid load balancing needs the number of local ranks",
    explanation="Each node balances over its own ranks, so `--data-parallel-size-local` has to say "
    "how many those are (several nodes say it by `--nnodes`).",
    remedy="Set `--data-parallel-size-local`.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(Example("vllm serve m -dp 4 --data-parallel-hybrid-lb", model_config=EXPERTS),),
    good=(
        Example(
            "vllm serve m -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
        Example("vllm serve m -dp 4 --data-parallel-hybrid-lb --nnodes 2", model_config=EXPERTS),
    ),
    covers=("hybrid-lb-needs-local-size",),
)
def hybrid_local(config: ServeConfig) -> Iterator[Finding]:
    """Look for the local size."""
    if not config[HYBRID] or config[LOCAL] is not None or size(config, "nnodes") > 1:
        return
    if asks_external(config):
        return
    yield hybrid_local.finding(
        "--data-parallel-hybrid-lb needs --data-parallel-size-local",
        location=config.place(HYBRID),
        fix=Fix("drop the mode", (RemoveFlag(HYBRID),), safe=False),
        engine_message=f"{_INVALID} `--data-parallel-hybrid-lb` requires "
        "`--data-parallel-size-local`.",
    )


@rule(
    id="parallel-dp-dense",
    title="A model without experts takes no part in external data parallelism",
    explanation="Ranks of a dense model have nothing to exchange. vLLM refuses a data-parallel "
    "rank for it: independent servers behind the load balancer do the same.",
    remedy="Start independent servers, without any `--data-parallel-…` option.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(
        Example("vllm serve m -dp 4 --data-parallel-rank 1", model_config=DENSE),
        Example(
            "vllm serve m -dp 4 --data-parallel-multi-port-external-lb "
            "--data-parallel-size-local 2",
            model_config=DENSE,
        ),
    ),
    good=(
        Example("vllm serve m -dp 4 --data-parallel-rank 1", model_config=EXPERTS),
        Example("vllm serve m -dp 4", model_config=DENSE, note="vLLM balances the load itself"),
    ),
    covers=("dense-external-dp",),
)
def dense(config: ServeConfig) -> Iterator[Finding]:
    """Ask whether there are experts."""
    if not asks_external(config) or size(config, DP) == 1 or is_moe(config):
        return
    dests = (RANK, EXTERNAL, "data_parallel_multi_port_external_lb")
    yield dense.finding(
        f"{size(config, DP)} data-parallel ranks behind an external load balancer need a model "
        "with experts, and this one has none",
        location=next((p for p in map(config.place, dests) if p is not None), config.place(DP)),
        fix=WITHOUT_DP,
        engine_message="Non-MoE models do not support external data parallel mode.",
    )


@rule(
    id="parallel-dp-backend",
    title="The data-parallel backend has a name that vLLM does not know",
    explanation="It is `mp` or `ray`; the command line does not check it.",
    remedy="Use `mp`, which is the default, or `ray`.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(
        Example("vllm serve m --data-parallel-backend multiprocessing"),
        Example("vllm serve m --data-parallel-backend nccl --data-parallel-address 10.0.0.1"),
    ),
    good=(Example("vllm serve m --data-parallel-backend mp"),),
    covers=("dp-backend-unknown",),
)
def backend(config: ServeConfig) -> Iterator[Finding]:
    """Compare with the two names."""
    given = config[BACKEND]
    if given in (None, "mp", "ray"):
        return
    engine = "data_parallel_backend can only be ray or mp, got %s"
    if config["data_parallel_address"] is not None:
        engine = "Input should be 'ray' or 'mp'"
    yield backend.finding(
        f"--data-parallel-backend {given} is neither mp nor ray",
        location=config.place(BACKEND),
        fix=Fix("use the default", (RemoveFlag(BACKEND),), safe=False),
        engine_message=engine,
    )


@rule(
    id="parallel-dp-nodes-backend",
    title="Several nodes need the multiprocessing backend of data parallelism",
    explanation="`--nnodes` above 1 is for `--data-parallel-backend mp`; Ray finds its nodes "
    "itself.",
    remedy="Drop `--data-parallel-backend`, or `--nnodes`.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(Example("vllm serve m -tp 2 --nnodes 2 --data-parallel-backend ray"),),
    good=(Example("vllm serve m -tp 2 --nnodes 2 --data-parallel-backend mp"),),
    covers=("nnodes-needs-mp-dp",),
)
def nodes_backend(config: ServeConfig) -> Iterator[Finding]:
    """Look for Ray."""
    if size(config, "nnodes") == 1 or config[BACKEND] != "ray":
        return
    yield nodes_backend.finding(
        f"--nnodes {size(config, 'nnodes')} does not go with --data-parallel-backend ray",
        location=config.place(BACKEND),
        fix=Fix("use the default backend", (RemoveFlag(BACKEND),), safe=False),
        engine_message=f"{_INVALID} `--nnodes {size(config, 'nnodes')}` requires "
        "`--data-parallel-backend mp`; got `--data-parallel-backend ray`.",
    )


@rule(
    id="parallel-dp-local-exceeds",
    title="More local data-parallel ranks than there are ranks",
    explanation="`--data-parallel-size-local` is the share of `--data-parallel-size` that this "
    "node runs.",
    remedy="Lower the local size or raise the data-parallel size.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}._validate_parallel_config",
    bad=(
        Example("vllm serve m -dp 2 --data-parallel-size-local 4"),
        Example("vllm serve m --data-parallel-size-local 2"),
    ),
    good=(Example("vllm serve m -dp 4 --data-parallel-size-local 4"),),
    covers=("dp-local-exceeds",),
)
def local_exceeds(config: ServeConfig) -> Iterator[Finding]:
    """Compare with all ranks."""
    launch = launch_of(config)
    if launch is None or launch.local_size <= data_parallel_size(config):
        return
    yield local_exceeds.finding(
        f"{launch.local_size} local data-parallel ranks are more than all "
        f"{data_parallel_size(config)}",
        location=config.place(LOCAL) or config.place("nnodes") or config.place(DP),
        fix=Fix("leave the local size out", (RemoveFlag(LOCAL),), safe=False),
        engine_message=f"data_parallel_size_local ({launch.local_size}) must be <= "
        f"data_parallel_size ({data_parallel_size(config)})",
    )


@rule(
    id="parallel-dp-external-one",
    title="External load balancing needs more than one data-parallel rank",
    explanation="A rank, or `--data-parallel-external-lb`, says that this server is one of "
    "several; `--data-parallel-size` is 1.",
    remedy="Set `--data-parallel-size`, or drop the rank.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}._validate_parallel_config",
    bad=(Example("vllm serve m --data-parallel-rank 0", model_config=EXPERTS),),
    good=(Example("vllm serve m -dp 2 --data-parallel-rank 0", model_config=EXPERTS),),
    covers=("external-lb-dp-one",),
)
def external_one(config: ServeConfig) -> Iterator[Finding]:
    """Compare the size with 1."""
    launch = launch_of(config)
    if launch is None or not launch.external_lb or data_parallel_size(config) > 1:
        return
    if is_multi_port(config):
        return
    place = next((p for p in map(config.place, (RANK, EXTERNAL, HYBRID, START)) if p), None)
    yield external_one.finding(
        "external load balancing needs --data-parallel-size above 1",
        location=place or config.place(LOCAL),
        fix=WITHOUT_DP,
        engine_message="data_parallel_external_lb can only be set when data_parallel_size > 1",
    )


@rule(
    id="parallel-dp-rank-range",
    title="The data-parallel rank is not below the data-parallel size",
    explanation="Ranks are counted from 0. With a local size `--data-parallel-start-rank` is the "
    "first rank of this node.",
    remedy="Use a rank below `--data-parallel-size`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}.__post_init__",
    bad=(
        Example("vllm serve m -dp 4 --data-parallel-rank 4", model_config=EXPERTS),
        Example(
            "vllm serve m -dp 4 --data-parallel-start-rank 4 --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    good=(Example("vllm serve m -dp 4 --data-parallel-rank 3", model_config=EXPERTS),),
    covers=("dp-rank-range",),
)
def rank_range(config: ServeConfig) -> Iterator[Finding]:
    """Compare rank and size."""
    launch = launch_of(config)
    if launch is None or takes_dp_from_environment(config):
        return
    ranks = data_parallel_size(config)
    if 0 <= launch.rank < ranks or config[EXECUTOR] == "external_launcher":
        return
    dest = RANK if config[RANK] is not None else START
    yield rank_range.finding(
        f"data-parallel rank {launch.rank} is not between 0 and {ranks - 1}",
        location=config.place(dest) or config.place(DP) or config.place(LOCAL),
        fix=Fix(f"use rank {ranks - 1}", (SetFlag(dest, ranks - 1),), safe=False),
        engine_message=f"data_parallel_rank ({launch.rank}) must be in the range [0, {ranks})",
    )
