"""What becomes of data-parallel options: effects that vLLM does not tell, or only logs."""

from __future__ import annotations

from collections.abc import Iterator

from app.rules.configuration.parallel_dp import (
    AREA,
    ARGUMENTS,
    HYBRID,
    RANK,
    START,
    asks_external,
)
from app.rules.configuration.parallel_models import DENSE, EXPERTS
from app.rules.declaration import Example
from app.rules.derived.model import is_moe
from app.rules.derived.parallel import (
    DP,
    LOCAL,
    data_parallel_size,
    is_headless,
    is_multi_port,
    launch_of,
    number,
    size,
    takes_dp_from_environment,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, UnsetEnvironment


@rule(
    id="parallel-dp-environment-dense",
    title="VLLM_DP_SIZE was left in the environment of a model without experts",
    explanation="Where `--data-parallel-size` is 1, vLLM reads `VLLM_DP_SIZE` instead, and refuses "
    "a size above 1 for a dense model.",
    remedy="Unset `VLLM_DP_SIZE`, `VLLM_DP_RANK` and their kin.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/parallel.py::ParallelConfig.__post_init__",
    bad=(Example("VLLM_DP_SIZE=2 vllm serve m", model_config=DENSE),),
    good=(
        Example("VLLM_DP_SIZE=1 vllm serve m", model_config=DENSE),
        Example("VLLM_DP_SIZE=2 vllm serve m -dp 4", model_config=DENSE, note="not read"),
    ),
    covers=("dp-env-dense",),
)
def environment_dense(config: ServeConfig) -> Iterator[Finding]:
    """Look for the variable."""
    variable = config.variable("VLLM_DP_SIZE")
    if variable is None or not takes_dp_from_environment(config):
        return
    if data_parallel_size(config) > 1 and not is_moe(config):
        yield environment_dense.finding(
            f"VLLM_DP_SIZE={variable.value} makes this a rank of data parallelism, which a model "
            "without experts does not take part in",
            location=variable.location,
            fix=Fix("unset VLLM_DP_SIZE", (UnsetEnvironment("VLLM_DP_SIZE"),), safe=False),
            engine_message="Offline data parallel mode is not supported/useful for dense models.",
        )


@rule(
    id="parallel-dp-environment",
    title="VLLM_DP_SIZE in the environment takes over",
    explanation="Where `--data-parallel-size` is 1 (or left out), vLLM takes size, rank and master "
    "from `VLLM_DP_SIZE`, `VLLM_DP_RANK` and `VLLM_DP_MASTER_…`, without a word. The server then "
    "waits for the other ranks.",
    remedy="Unset the variables, or say `--data-parallel-size`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/parallel.py::ParallelConfig.__post_init__",
    bad=(Example("VLLM_DP_SIZE=2 vllm serve m", model_config=EXPERTS),),
    good=(
        Example("vllm serve m", model_config=EXPERTS),
        Example("VLLM_DP_SIZE=2 vllm serve m -dp 4", model_config=EXPERTS, note="not read"),
    ),
    covers=("dp-env-override",),
)
def environment(config: ServeConfig) -> Iterator[Finding]:
    """Tell the size that will be used."""
    variable = config.variable("VLLM_DP_SIZE")
    if variable is None or not takes_dp_from_environment(config):
        return
    ranks = data_parallel_size(config)
    if ranks != 1:
        yield environment.finding(
            f"vLLM will run as one of {ranks} data-parallel ranks, because "
            f"VLLM_DP_SIZE={variable.value} is set and --data-parallel-size is not",
            location=variable.location,
            fix=Fix("unset VLLM_DP_SIZE", (UnsetEnvironment("VLLM_DP_SIZE"),), safe=False),
            evidence={"asked": size(config, DP), "effective": ranks, "dest": DP},
        )


@rule(
    id="parallel-dp-mode-changed",
    title="vLLM takes another mode of load balancing",
    explanation="Hybrid load balancing with one local rank becomes external; with all ranks on "
    "this node it is switched off; a start rank with a local size switches it on.",
    remedy="Say the mode that is meant, or nothing if the effect is meant.",
    severity=Severity.WARNING,
    area=AREA,
    source=ARGUMENTS,
    bad=(
        Example(
            "vllm serve m -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 1",
            model_config=EXPERTS,
        ),
        Example(
            "vllm serve m -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 4",
            model_config=EXPERTS,
        ),
        Example(
            "vllm serve m -dp 4 --data-parallel-start-rank 2 --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(
            "vllm serve m -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    covers=("hybrid-lb-local-one", "hybrid-lb-single-node", "start-rank-implies-hybrid"),
)
def mode_changed(config: ServeConfig) -> Iterator[Finding]:
    """Compare the mode that was asked for with the one that results."""
    launch, local = launch_of(config), number(config, LOCAL)
    if launch is None or local is None or asks_external(config):
        return
    asked = "hybrid" if config[HYBRID] else "internal"
    effective = "hybrid" if launch.hybrid_lb else "external" if launch.external_lb else "internal"
    if asked == effective or (asked == "internal" and is_headless(config)):
        return
    dest = HYBRID if config[HYBRID] else START
    yield mode_changed.finding(
        f"vLLM will balance the load in {effective} mode, because --data-parallel-size-local is "
        f"{local} of {size(config, DP)} ranks"
        + ("" if config[HYBRID] else " and a start rank is given"),
        location=config.place(dest),
        evidence={"asked": asked, "effective": effective, "dest": dest},
    )


@rule(
    id="parallel-dp-rank-replaced",
    title="vLLM uses another data-parallel rank",
    explanation="A start rank counts only with a local size; without one all ranks are started "
    "here, from rank 0. Up to 0.30 the rank inferred from `--node-rank` replaces a given one.",
    remedy="Add `--data-parallel-size-local`, or drop the rank.",
    severity=Severity.WARNING,
    area=AREA,
    source=ARGUMENTS,
    bad=(
        Example("vllm serve m -dp 4 --data-parallel-start-rank 2", model_config=EXPERTS),
        Example(
            "vllm serve m -dp 2 --data-parallel-external-lb --data-parallel-rank 1 --nnodes 2",
            model_config=EXPERTS,
            versions="<0.31",
        ),
    ),
    good=(
        Example(
            "vllm serve m -dp 4 --data-parallel-start-rank 2 --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    covers=("dp-rank-overwritten",),
)
def rank_replaced(config: ServeConfig) -> Iterator[Finding]:
    """Compare given and effective rank."""
    launch = launch_of(config)
    if launch is None or is_multi_port(config):
        return
    for dest in (RANK, START):
        asked = number(config, dest)
        if asked is not None and asked != launch.rank:
            yield rank_replaced.finding(
                f"vLLM will start at data-parallel rank {launch.rank}, not at {asked}",
                location=config.place(dest),
                evidence={"asked": asked, "effective": launch.rank, "dest": dest},
            )
