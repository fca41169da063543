"""Processes of a data-parallel server: headless nodes, API servers, supervisor, fault tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.rules.configuration.parallel_dp import (
    AREA,
    ARGUMENTS,
    HYBRID,
    asks_external,
)
from app.rules.configuration.parallel_models import EXPERTS
from app.rules.declaration import Example
from app.rules.derived.parallel import (
    ALL2ALL,
    DP,
    LOCAL,
    PP,
    TP,
    all2all_backend,
    api_servers,
    data_parallel_size,
    is_headless,
    is_multi_port,
    launch_of,
    number,
    size,
    uses_rust_frontend,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag, UnsetEnvironment

_SERVERS: Final = "api_server_count"
_COMMAND: Final = "vllm/entrypoints/cli/serve.py::ServeSubcommand.cmd"
_HEADLESS: Final = "vllm/entrypoints/cli/serve.py::run_headless"
_STRATEGY: Final = "VLLM_RAY_DP_PACK_STRATEGY"
_STRATEGIES: Final = ("strict", "fill", "span")
_NEED_WHOLE_NODES: Final = ("deepep_high_throughput", "deepep_low_latency")


@rule(
    id="parallel-dp-headless-servers",
    title="A headless node has no API servers",
    explanation="`--headless` starts engines only, for a front end on another node.",
    remedy="Drop `--api-server-count`, or `--headless`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_COMMAND,
    bad=(Example("vllm serve m --headless --api-server-count 2"),),
    good=(
        Example("vllm serve m --headless"),
        Example("vllm serve m --headless --api-server-count 0"),
    ),
    covers=("headless-with-api-servers", "headless-asc-internal"),
)
def headless_servers(config: ServeConfig) -> Iterator[Finding]:
    """Look for a number of servers."""
    count = number(config, _SERVERS)
    if not config["headless"] or count is None or count < 1 or config["grpc"]:
        return
    yield headless_servers.finding(
        f"--headless starts no API servers, and --api-server-count is {count}",
        location=config.place(_SERVERS),
        fix=Fix("drop --api-server-count", (RemoveFlag(_SERVERS),), safe=False),
        engine_message=f"--api-server-count={count} cannot be used with --headless (no API servers "
        "are started in headless mode).",
    )


@rule(
    id="parallel-dp-headless-hybrid",
    title="A headless node balances no load",
    explanation="Hybrid load balancing needs an API server on each node; `--headless` (or "
    "`--api-server-count 0`) starts none.",
    remedy="Drop `--headless`, or `--data-parallel-hybrid-lb`.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(
        Example(
            "vllm serve m -dp 4 --headless --data-parallel-hybrid-lb --data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(
            "vllm serve m -dp 4 --headless --data-parallel-start-rank 2 "
            "--data-parallel-size-local 2",
            model_config=EXPERTS,
        ),
    ),
    covers=("headless-hybrid-lb", "hybrid-lb-headless"),
)
def headless_hybrid(config: ServeConfig) -> Iterator[Finding]:
    """Look for the mode."""
    if config[HYBRID] and is_headless(config):
        yield headless_hybrid.finding(
            "--data-parallel-hybrid-lb does not go with a headless node",
            location=config.place(HYBRID),
            fix=Fix("drop --data-parallel-hybrid-lb", (RemoveFlag(HYBRID),), safe=False),
            engine_message="data_parallel_hybrid_lb is not applicable in headless mode",
        )


@rule(
    id="parallel-dp-headless-empty",
    title="A headless node without engines",
    explanation="With `--data-parallel-size-local 0` a headless node has nothing to start; vLLM "
    "stops after its configuration is built.",
    remedy="Start the node with an API server, or give it ranks.",
    severity=Severity.WARNING,
    area=AREA,
    source=_HEADLESS,
    bad=(Example("vllm serve m -dp 2 --headless --data-parallel-size-local 0"),),
    good=(Example("vllm serve m -dp 2 --data-parallel-size-local 0", note="front end only"),),
    covers=("headless-local-size-zero",),
)
def headless_empty(config: ServeConfig) -> Iterator[Finding]:
    """Look for engines."""
    launch = launch_of(config)
    if launch is not None and launch.local_size < 1 and is_headless(config):
        yield headless_empty.finding(
            "--headless with --data-parallel-size-local 0 starts nothing: vLLM stops",
            location=config.place(LOCAL),
        )


@rule(
    id="parallel-dp-headless-external",
    title="A headless node does not go with external load balancing",
    explanation="Where each rank has its own server, or its own balancer, the front end expects no "
    "headless engines and stops when one says hello.",
    remedy="Drop `--headless` for this mode.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/v1/engine/utils.py::wait_for_engine_startup",
    bad=(Example("vllm serve m -dp 2 --headless --data-parallel-rank 1", model_config=EXPERTS),),
    good=(Example("vllm serve m -dp 2 --data-parallel-rank 1", model_config=EXPERTS),),
    covers=("remote-headless",),
)
def headless_external(config: ServeConfig) -> Iterator[Finding]:
    """Look for a rank of its own."""
    launch = launch_of(config)
    if launch is None or not launch.external_lb or not is_headless(config):
        return
    if data_parallel_size(config) > 1:
        yield headless_external.finding(
            f"data-parallel rank {launch.rank} is headless, which its front end refuses where load "
            "balancing is external",
            location=config.place("headless") or config.place(_SERVERS),
        )


@rule(
    id="parallel-dp-node-not-headless",
    title="A further node starts API servers of its own",
    explanation="Where vLLM balances the load itself, only the node with rank 0 has a front end. A "
    "further node that is not headless stops when it starts its engines.",
    remedy="Add `--headless` on every node but the first, or use hybrid load balancing.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/entrypoints/cli/serve.py::run_multi_api_server",
    bad=(Example("vllm serve m -dp 4 --nnodes 2 --node-rank 1", model_config=EXPERTS),),
    good=(
        Example("vllm serve m -dp 4 --nnodes 2 --node-rank 1 --headless", model_config=EXPERTS),
        Example("vllm serve m -dp 4 --nnodes 2", model_config=EXPERTS),
    ),
    covers=("internal-lb-nonzero-rank", "remote-not-headless"),
)
def node_not_headless(config: ServeConfig) -> Iterator[Finding]:
    """Look for a front end beyond rank 0."""
    launch = launch_of(config)
    if launch is None or launch.rank < 1 or launch.local_engines_only or is_headless(config):
        return
    place = config.place("node_rank") or config.place("data_parallel_start_rank")
    yield node_not_headless.finding(
        f"this node starts at data-parallel rank {launch.rank} and is not headless: vLLM stops "
        "when it starts the engines",
        location=place or config.place(DP),
        fix=Fix("add --headless", (SetFlag("headless", True),), safe=False),
    )


@rule(
    id="parallel-dp-rust-servers",
    title="The Rust front end is one process",
    explanation="With `VLLM_USE_RUST_FRONTEND` vLLM ignores `--api-server-count` above 1.",
    remedy="Drop `--api-server-count`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_COMMAND,
    bad=(Example("VLLM_USE_RUST_FRONTEND=1 vllm serve m --api-server-count 2"),),
    good=(Example("vllm serve m --api-server-count 2"),),
    covers=("rust-frontend-asc-ignored",),
)
def rust_servers(config: ServeConfig) -> Iterator[Finding]:
    """Tell the number that is used."""
    count = number(config, _SERVERS)
    if count is None or count < 2 or config["headless"] or not uses_rust_frontend(config):
        return
    yield rust_servers.finding(
        f"vLLM will run 1 front end, not {count}, because VLLM_USE_RUST_FRONTEND is set",
        location=config.place(_SERVERS),
        evidence={"asked": count, "effective": 1, "dest": _SERVERS},
    )


@rule(
    id="parallel-dp-elastic-servers",
    title="Elastic expert parallelism has one API server",
    explanation="vLLM caps the number at 1, also where it would follow from "
    "`--data-parallel-size`.",
    remedy="Set `--api-server-count 1` to say so.",
    severity=Severity.WARNING,
    area=AREA,
    source=_COMMAND,
    bad=(
        Example(
            "vllm serve m -dp 2 --enable-expert-parallel --enable-eplb --enable-elastic-ep "
            "--eplb-config.use_async false --api-server-count 2",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(
            "vllm serve m -dp 2 --enable-expert-parallel --enable-eplb --enable-elastic-ep "
            "--eplb-config.use_async false --api-server-count 1",
            model_config=EXPERTS,
        ),
    ),
    covers=("elastic-ep-asc-capped",),
)
def elastic_servers(config: ServeConfig) -> Iterator[Finding]:
    """Tell the number that is used."""
    if not config["enable_elastic_ep"] or config["headless"] or is_multi_port(config):
        return
    count = number(config, _SERVERS)
    asked = count if count is not None else size(config, DP)
    if count is None and (asks_external(config) or config[HYBRID]):
        return
    if asked > 1 and api_servers(config) == 1:
        yield elastic_servers.finding(
            f"vLLM will run 1 API server, not {asked}, because of --enable-elastic-ep",
            location=config.place(_SERVERS) or config.place("enable_elastic_ep"),
            evidence={"asked": asked, "effective": 1, "dest": _SERVERS},
        )


@rule(
    id="parallel-dp-fault-tolerance",
    title="Fault tolerance needs external load balancing",
    explanation="`--enable-fault-tolerance` works where each server is one data-parallel rank.",
    remedy="Use `--data-parallel-rank`, or drop `--enable-fault-tolerance`.",
    severity=Severity.ERROR,
    area=AREA,
    source=ARGUMENTS,
    bad=(Example("vllm serve m -dp 2 --enable-fault-tolerance", model_config=EXPERTS),),
    good=(
        Example(
            "vllm serve m -dp 2 --enable-fault-tolerance --data-parallel-rank 0",
            model_config=EXPERTS,
        ),
    ),
    covers=("fault-tolerance-needs-external-lb",),
)
def fault_tolerance(config: ServeConfig) -> Iterator[Finding]:
    """Look for the mode; one that follows from a local size does not count."""
    if not config["enable_fault_tolerance"] or asks_external(config):
        return
    yield fault_tolerance.finding(
        "--enable-fault-tolerance needs external load balancing (--data-parallel-rank)",
        location=config.place("enable_fault_tolerance"),
        fix=Fix(
            "drop --enable-fault-tolerance", (RemoveFlag("enable_fault_tolerance"),), safe=False
        ),
        engine_message="Fault tolerance requires external load balancer mode "
        "(--data-parallel-external-lb or --data-parallel-rank).",
    )


@rule(
    id="parallel-dp-fault-servers",
    title="Fault tolerance goes with one API server",
    explanation="One client manages all engines, so there is one API server process.",
    remedy="Drop `--api-server-count`; with external load balancing it is 1.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/parallel.py::ParallelConfig._validate_parallel_config",
    bad=(
        Example(
            "vllm serve m -dp 2 --enable-fault-tolerance --data-parallel-rank 0 "
            "--api-server-count 2",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(
            "vllm serve m -dp 2 --enable-fault-tolerance --data-parallel-rank 0",
            model_config=EXPERTS,
        ),
    ),
    covers=("ft-api-servers",),
)
def fault_servers(config: ServeConfig) -> Iterator[Finding]:
    """Count the servers."""
    if not config["enable_fault_tolerance"] or api_servers(config) < 2:
        return
    count = api_servers(config)
    yield fault_servers.finding(
        f"--enable-fault-tolerance goes with one API server, and there are {count}",
        location=config.place(_SERVERS) or config.place("enable_fault_tolerance"),
        fix=Fix("use one API server", (SetFlag(_SERVERS, 1),), safe=False),
        engine_message="Fault tolerance requires a single API server process "
        f"(--api-server-count=1), but got {count}.",
    )


@rule(
    id="parallel-dp-fault-config",
    title="--fault-tolerance-config alone",
    explanation="On the command line the settings have no effect without "
    "`--enable-fault-tolerance`. As an engine argument, where they are a mapping, they switch "
    "fault tolerance on.",
    remedy="Say `--enable-fault-tolerance`, or drop the settings.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/engine/arg_utils.py::EngineArgs.__post_init__",
    bad=(Example("vllm serve m --fault-tolerance-config '{}'"),),
    good=(
        Example(
            "vllm serve m -dp 2 --enable-fault-tolerance --data-parallel-rank 0 "
            "--fault-tolerance-config '{}'",
            model_config=EXPERTS,
        ),
    ),
    covers=("fault-tolerance-auto-enabled",),
)
def fault_config(config: ServeConfig) -> Iterator[Finding]:
    """Look for settings without the switch."""
    dest = "fault_tolerance_config"
    if not config.given(dest) or config["enable_fault_tolerance"]:
        return
    if isinstance(config[dest], Mapping):
        yield fault_config.finding(
            "--fault-tolerance-config has no effect without --enable-fault-tolerance; as an "
            "engine argument it would enable it",
            location=config.place(dest),
            evidence={"asked": True, "effective": False, "dest": "enable_fault_tolerance"},
        )


@rule(
    id="parallel-dp-supervisor-devices",
    title="--device-ids is too short for the servers of the supervisor",
    explanation="With `--data-parallel-multi-port-external-lb` each server gets the next tensor x "
    "pipeline parallel size devices of the list. The supervisor stops at the first server for "
    "which too few are left.",
    remedy="List local data-parallel size x tensor x pipeline parallel size devices.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/entrypoints/launchers/dp_supervisor.py::_build_device_ids",
    bad=(
        Example(
            "vllm serve m -dp 4 -tp 2 --data-parallel-multi-port-external-lb "
            "--data-parallel-size-local 2 --device-ids 0",
            model_config=EXPERTS,
        ),
    ),
    good=(
        Example(
            "vllm serve m -dp 4 -tp 2 --data-parallel-multi-port-external-lb "
            "--data-parallel-size-local 2 --device-ids 0,1,2,3",
            model_config=EXPERTS,
        ),
    ),
    covers=("mplb-device-ids-short",),
)
def supervisor_devices(config: ServeConfig) -> Iterator[Finding]:
    """Count the list; further servers start after the first has been built."""
    ids = config["device_ids"]
    if not is_multi_port(config) or not isinstance(ids, list) or config["grpc"]:
        return
    each, servers = size(config, TP) * size(config, PP), number(config, LOCAL) or 1
    if len(ids) >= each * servers:
        return
    short = len(ids) // each
    yield supervisor_devices.finding(
        f"--device-ids lists {len(ids)} device(s); {servers} servers of {each} need "
        f"{each * servers}, and server {short} gets too few",
        severity=Severity.ERROR if short == 0 else Severity.WARNING,
        location=config.place("device_ids"),
        fix=Fix("drop --device-ids", (RemoveFlag("device_ids"),), safe=False),
        engine_message=f"--device-ids has {len(ids)} entries, but DP rank {short} needs devices "
        f"[{short * each}, {(short + 1) * each})",
    )


@rule(
    id="parallel-dp-ray-placement",
    title="VLLM_RAY_DP_PACK_STRATEGY does not fit",
    explanation="With `--data-parallel-backend ray` the variable says how ranks are placed: "
    "`strict`, `fill` or `span`. DeepEP kernels need whole nodes, which `fill` does not promise; "
    "`span` works the local size out itself. vLLM stops when it places the ranks.",
    remedy="Unset the variable: `strict` is the default.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/v1/engine/utils.py::CoreEngineActorManager.create_dp_placement_groups",
    bad=(
        Example(f"{_STRATEGY}=pack vllm serve m -dp 2 --data-parallel-backend ray"),
        Example(
            f"{_STRATEGY}=fill vllm serve m -dp 2 --data-parallel-backend ray "
            "--all2all-backend deepep_low_latency",
            model_config=EXPERTS,
        ),
        Example(
            f"{_STRATEGY}=span vllm serve m -dp 4 --data-parallel-backend ray "
            "--data-parallel-size-local 2"
        ),
    ),
    good=(
        Example(f"{_STRATEGY}=strict vllm serve m -dp 2 --data-parallel-backend ray"),
        Example(f"{_STRATEGY}=pack vllm serve m -dp 2", note="not read"),
    ),
    covers=("ray-dp-pack-strategy", "ray-dp-fill-deepep", "ray-dp-span-local"),
)
def ray_placement(config: ServeConfig) -> Iterator[Finding]:
    """Check the strategy."""
    variable = config.variable(_STRATEGY)
    if variable is None or config["data_parallel_backend"] != "ray":
        return
    strategy, message = variable.value, ""
    if strategy not in _STRATEGIES:
        message = f"is none of {', '.join(_STRATEGIES)}"
    elif strategy == "fill" and all2all_backend(config) in _NEED_WHOLE_NODES:
        message = f"does not go with --all2all-backend {config[ALL2ALL]}"
    elif strategy == "span" and number(config, LOCAL) not in (None, 1):
        message = f"does not go with --data-parallel-size-local {config[LOCAL]}"
    if message:
        yield ray_placement.finding(
            f"{_STRATEGY}={strategy} {message}: vLLM stops when it places the ranks",
            location=variable.location,
            fix=Fix("unset it", (UnsetEnvironment(_STRATEGY),), safe=False),
        )
