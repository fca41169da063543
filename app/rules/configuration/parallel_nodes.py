"""Several nodes, and how processes are started and bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from app.rules.configuration.parallel_models import DENSE, EXPERTS
from app.rules.declaration import Example
from app.rules.derived.parallel import (
    DP,
    EXECUTOR,
    data_parallel_size,
    executor,
    launch_of,
    nodes_span,
    nodes_within_rank,
    number,
    since,
    size,
    world_size,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetEnvironment, SetFlag

AREA: Final = "parallel"
_ARGUMENTS: Final = "vllm/engine/arg_utils.py::EngineArgs.create_engine_config"
_PARALLEL: Final = "vllm/config/parallel.py::ParallelConfig"
_CPU_LIST: Final = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_CPU_SYNTAX: Final = (
    "numa_bind_cpus entries must use numactl CPU list syntax, for example '0-3' or '0,2,4-7'."
)
_LAUNCH: Final = "Invalid data-parallel launch options:"


@rule(
    id="parallel-nodes-world",
    title="The ranks cannot be spread equally over the nodes",
    explanation="With `--nnodes` each node starts the same number of ranks, so data x pipeline x "
    "tensor parallel size (from 0.30 also x prefill-context) has to be a multiple of it.",
    remedy="Change `--nnodes` or the sizes.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ARGUMENTS,
    bad=(
        Example("vllm serve m --nnodes 2"),
        Example(
            "vllm serve m -tp 3 -dp 3 --nnodes 2",
            model_config={**DENSE, "hidden_size": 4608}
            | {"num_attention_heads": 36, "num_key_value_heads": 9},
        ),
        Example("vllm serve m -tp 2 -pcp 2 --nnodes 4", versions="<0.30"),
    ),
    good=(
        Example("vllm serve m -tp 4 --nnodes 2"),
        Example("vllm serve m -tp 2 -pcp 2 --nnodes 4", versions=">=0.30"),
    ),
    covers=("nnodes-divides-world",),
)
def nodes_world(config: ServeConfig) -> Iterator[Finding]:
    """Divide all ranks by the nodes."""
    nodes = size(config, "nnodes")
    if nodes == 1:
        return
    total = size(config, DP) * nodes_span(config)
    if total % nodes:
        sizes = "`--data-parallel-size`, `--pipeline-parallel-size`, "
        yield nodes_world.finding(
            f"{total} rank(s) in all cannot be spread equally over --nnodes {nodes}",
            location=config.place("nnodes"),
            fix=Fix("use one node", (RemoveFlag("nnodes"), RemoveFlag("node_rank")), safe=False),
            engine_message=f"{_LAUNCH} `--nnodes {nodes}` must evenly divide the total world size "
            f"({total}). Adjust `--nnodes`, {sizes}",
            evidence={"ranks": total, "nodes": nodes},
        )


@rule(
    id="parallel-node-rank",
    title="--node-rank is no number of a node",
    explanation="Nodes are counted from 0 to `--nnodes` - 1. With one node the rank is ignored.",
    remedy="Give each node its own rank below `--nnodes`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ARGUMENTS,
    bad=(Example("vllm serve m -tp 2 --nnodes 2 --node-rank 2"),),
    good=(
        Example("vllm serve m -tp 2 --nnodes 2 --node-rank 1"),
        Example("vllm serve m --node-rank 2"),
    ),
    covers=("node-rank-range",),
)
def node_rank(config: ServeConfig) -> Iterator[Finding]:
    """Compare rank and number."""
    nodes, rank = size(config, "nnodes"), number(config, "node_rank") or 0
    if nodes > 1 and not 0 <= rank < nodes:
        yield node_rank.finding(
            f"--node-rank {rank} is not between 0 and {nodes - 1}",
            location=config.place("node_rank"),
            fix=Fix(f"use {nodes - 1}", (SetFlag("node_rank", nodes - 1),), safe=False),
            engine_message=f"{_LAUNCH} `--node-rank` must be between 0 and {nodes - 1}; got "
            f"`--node-rank {rank}`. Set it to this node's zero-based index.",
        )


@rule(
    id="parallel-nodes-executor",
    title="Several nodes need the multiprocessing executor",
    explanation="`--nnodes` above 1 goes with the executors `mp`, `uni` and `external_launcher`. "
    "Ray finds its nodes itself.",
    remedy="Leave `--nnodes` out with Ray, or the executor.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}.__post_init__",
    bad=(Example("vllm serve m -tp 2 --nnodes 2 --distributed-executor-backend ray"),),
    good=(Example("vllm serve m -tp 2 --nnodes 2 --distributed-executor-backend mp"),),
    covers=("nnodes-executor",),
)
def nodes_executor(config: ServeConfig) -> Iterator[Finding]:
    """Look at the executor that was asked for."""
    if size(config, "nnodes") == 1 or executor(config) in {"mp", "uni", "external_launcher"}:
        return
    yield nodes_executor.finding(
        f"--nnodes {size(config, 'nnodes')} does not go with the executor {executor(config)}",
        location=config.place("nnodes"),
        related=tuple(place for place in (config.place(EXECUTOR),) if place is not None),
        fix=Fix("let vLLM choose the executor", (RemoveFlag(EXECUTOR),), safe=False),
        engine_message="nnodes > 1 can only be set when distributed executor backend is mp, uni "
        "or external_launcher.",
    )


@rule(
    id="parallel-nodes-groups",
    title="The nodes do not divide into whole data-parallel ranks",
    explanation="Each data-parallel rank spans the same number of nodes, and its GPUs are spread "
    "equally over them. vLLM only notices when the executor starts: an error from 0.31 on, before "
    "that workers that wait for each other.",
    remedy="Choose `--nnodes`, `--data-parallel-size` and `--data-parallel-size-local` so that "
    "nodes divide by data-parallel size / local size.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_PARALLEL}.nnodes_within_dp",
    bad=(
        Example(
            "vllm serve m -tp 4 -dp 3 --nnodes 2",
            model_config=EXPERTS,
            note="one rank a node, three ranks, two nodes",
        ),
    ),
    good=(Example("vllm serve m -tp 4 -dp 4 --nnodes 2", model_config=EXPERTS),),
    covers=("nnodes-vs-dp-groups", "mp-nnodes"),
)
def nodes_groups(config: ServeConfig) -> Iterator[Finding]:
    """Divide the nodes by the groups, and the GPUs by the nodes."""
    nodes = size(config, "nnodes")
    if nodes == 1 or launch_of(config) is None:
        return
    span = nodes_within_rank(config)
    if span is None:
        message = (
            f"--nnodes {nodes} does not divide into the {data_parallel_size(config)} data-parallel "
            "ranks"
        )
    elif world_size(config) % span:
        message = f"{world_size(config)} GPU(s) of a rank cannot be spread over {span} nodes"
    else:
        return
    later = "vLLM stops" if since(config, "0.31") or span else "workers wait for each other"
    yield nodes_groups.finding(
        f"{message}: {later} when the executor starts", location=config.place("nnodes")
    )


@rule(
    id="parallel-numa-lists",
    title="A list of NUMA nodes or CPUs cannot be read",
    explanation="`--numa-bind-nodes` takes numbers from 0 on, `--numa-bind-cpus` one CPU list a "
    "GPU in the syntax of numactl: `0-3`, `0,2,4-7`, ranges ascending, no spaces.",
    remedy="Write the list in that syntax.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}._validate_numa_bind_cpus",
    bad=(
        Example("vllm serve m --numa-bind --numa-bind-nodes -1"),
        Example("vllm serve m --numa-bind --numa-bind-cpus 3-1"),
        Example("vllm serve m --numa-bind --numa-bind-cpus cpu0"),
        Example("vllm serve m --numa-bind --numa-bind-cpus '0 1'"),
    ),
    good=(
        Example("vllm serve m --numa-bind --numa-bind-nodes 0"),
        Example("vllm serve m -tp 2 --numa-bind --numa-bind-cpus 0-3 4,6-7"),
    ),
    covers=(
        "numa-nodes-empty",
        "numa-nodes-negative",
        "numa-cpus-empty",
        "numa-cpus-blank",
        "numa-cpus-syntax",
        "numa-cpus-descending",
    ),
)
def numa_lists(config: ServeConfig) -> Iterator[Finding]:
    """Read both lists as vLLM does."""
    for dest, problem in (
        ("numa_bind_nodes", _node_problem(config["numa_bind_nodes"])),
        ("numa_bind_cpus", _cpu_problem(config["numa_bind_cpus"])),
    ):
        if problem is not None:
            message, engine = problem
            yield numa_lists.finding(
                f"--{dest.replace('_', '-')} {message}",
                location=config.place(dest),
                fix=Fix("let vLLM find the nodes", (RemoveFlag(dest),), safe=False),
                engine_message=engine,
            )


def _node_problem(nodes: object) -> tuple[str, str] | None:
    if not isinstance(nodes, list):
        return None
    if not nodes:
        return "is empty", "numa_bind_nodes must not be empty."
    if any(isinstance(node, int) and node < 0 for node in nodes):
        return (
            f"has a negative number: {nodes}",
            "numa_bind_nodes must contain non-negative integers.",
        )
    return None


def _cpu_problem(lists: object) -> tuple[str, str] | None:
    if not isinstance(lists, list):
        return None
    if not lists:
        return "is empty", "numa_bind_cpus must not be empty."
    for text in lists:
        if not isinstance(text, str):
            return None
        if not text:
            return "has an empty entry", "numa_bind_cpus entries must not be empty."
        if not _CPU_LIST.fullmatch(text):
            return (
                f"has {text!r}, which is no CPU list such as 0-3 or 0,2,4-7",
                _CPU_SYNTAX,
            )
        bounds = (part.split("-") for part in text.split(",") if "-" in part)
        if any(int(first) > int(last) for first, last in bounds):
            return (
                f"has {text!r}, a range that runs downwards",
                f"numa_bind_cpus ranges must be ascending, but got '{text}'.",
            )
    return None


@rule(
    id="parallel-numa-off",
    title="NUMA lists need --numa-bind",
    explanation="Lists of NUMA nodes or CPUs say where to bind; without `--numa-bind` vLLM refuses "
    "them.",
    remedy="Add `--numa-bind`, or drop the lists.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}._validate_parallel_config",
    bad=(
        Example("vllm serve m --numa-bind-nodes 0"),
        Example("vllm serve m --numa-bind-cpus 0-3"),
    ),
    good=(Example("vllm serve m --numa-bind --numa-bind-nodes 0"),),
    covers=("numa-needs-bind",),
)
def numa_off(config: ServeConfig) -> Iterator[Finding]:
    """Look for lists alone."""
    if config["numa_bind"]:
        return
    dest = next((d for d in ("numa_bind_nodes", "numa_bind_cpus") if config[d] is not None), None)
    if dest is not None:
        yield numa_off.finding(
            f"--{dest.replace('_', '-')} needs --numa-bind",
            location=config.place(dest),
            fix=Fix("add --numa-bind", (SetFlag("numa_bind", True),), safe=True),
            engine_message="numa_bind_nodes and numa_bind_cpus require numa_bind=True.",
        )


@rule(
    id="parallel-nsight-without-ray",
    title="--ray-workers-use-nsight needs Ray",
    explanation="The option has Ray start its workers under Nsight; other executors refuse it.",
    remedy="Drop it, or use `--distributed-executor-backend ray`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}._verify_args",
    bad=(Example("vllm serve m -tp 2 --ray-workers-use-nsight"),),
    good=(Example("vllm serve m -tp 2"),),
    covers=("nsight-needs-ray",),
)
def nsight(config: ServeConfig) -> Iterator[Finding]:
    """Look at the executor; a class of its own may use Ray."""
    if not config["ray_workers_use_nsight"]:
        return
    if executor(config) not in {"mp", "uni", "external_launcher"}:
        return
    yield nsight.finding(
        f"--ray-workers-use-nsight does not go with the executor {executor(config)}",
        location=config.place("ray_workers_use_nsight"),
        fix=Fix("drop it", (RemoveFlag("ray_workers_use_nsight"),), safe=False),
        engine_message="Unable to use nsight profiling unless workers run with Ray.",
    )


@rule(
    id="parallel-loading-workers-ignored",
    title="--max-parallel-loading-workers has no effect",
    explanation="vLLM takes the option and ignores it.",
    remedy="Drop it.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_PARALLEL}.__post_init__",
    bad=(Example("vllm serve m --max-parallel-loading-workers 2"),),
    good=(Example("vllm serve m"),),
    covers=("max-parallel-loading-ignored",),
)
def loading_workers(config: ServeConfig) -> Iterator[Finding]:
    """Tell that it is ignored."""
    dest = "max_parallel_loading_workers"
    if config[dest] is not None:
        yield loading_workers.finding(
            f"--max-parallel-loading-workers {config[dest]} is ignored",
            location=config.place(dest),
            fix=Fix("drop it", (RemoveFlag(dest),), safe=True),
            evidence={"asked": config[dest], "effective": None, "dest": dest},
        )


@rule(
    id="parallel-external-launcher-rank",
    title="The external launcher has to say each process's RANK",
    explanation="With the executor `external_launcher` and data parallelism vLLM reads the "
    "variable `RANK`, which torchrun sets, and ends with a KeyError without it.",
    remedy="Start vLLM by torchrun or set RANK, WORLD_SIZE and their kin for each process.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_PARALLEL}.__post_init__",
    bad=(
        Example(
            "vllm serve m -dp 2 --distributed-executor-backend external_launcher",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(
            "RANK=0 vllm serve m -dp 2 --distributed-executor-backend external_launcher",
            model_config=EXPERTS,
        ),
        Example("vllm serve m --distributed-executor-backend external_launcher"),
    ),
    covers=("external-launcher-rank-env",),
)
def external_rank(config: ServeConfig) -> Iterator[Finding]:
    """Look for the variable."""
    if config[EXECUTOR] != "external_launcher" or config.variable("RANK") is not None:
        return
    launch = launch_of(config)
    if launch is not None and (size(config, DP) > 1 or launch.local_size == 0):
        yield external_rank.finding(
            "the executor external_launcher with data parallelism reads the variable RANK, which "
            "is not set here",
            location=config.place(EXECUTOR),
            fix=Fix("set RANK for the first process", (SetEnvironment("RANK", "0"),), safe=False),
            engine_message="'RANK'",
        )


@rule(
    id="parallel-external-launcher-process",
    title="The external launcher runs the engine in the server's process",
    explanation="`external_launcher` sets `VLLM_ENABLE_V1_MULTIPROCESSING=0`, whatever it was.",
    remedy="Nothing, if that is meant.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_PARALLEL}.__post_init__",
    bad=(
        Example(
            "VLLM_ENABLE_V1_MULTIPROCESSING=1 vllm serve m "
            "--distributed-executor-backend external_launcher"
        ),
    ),
    good=(Example("vllm serve m --distributed-executor-backend external_launcher"),),
    covers=("external-launcher-v1-mp",),
)
def external_process(config: ServeConfig) -> Iterator[Finding]:
    """Tell where the variable asks for the opposite."""
    if config[EXECUTOR] != "external_launcher":
        return
    variable = config.variable("VLLM_ENABLE_V1_MULTIPROCESSING")
    if variable is not None and variable.value.strip() not in {"", "0"}:
        yield external_process.finding(
            f"VLLM_ENABLE_V1_MULTIPROCESSING={variable.value} becomes 0 with the executor "
            "external_launcher",
            location=variable.location,
            evidence={
                "asked": variable.value,
                "effective": "0",
                "dest": "VLLM_ENABLE_V1_MULTIPROCESSING",
            },
        )
