"""Parallel sizes, load balancing, executor and all-to-all backend as vLLM settles them.

    launch = launch_of(config)          # None where vLLM stops before it has them
    data_parallel_size(config)          # `VLLM_DP_SIZE` counts where no size was given

Sources: `entrypoints/cli/serve.py::ServeSubcommand.cmd`,
`engine/arg_utils.py::EngineArgs.create_engine_config`,
`config/parallel.py::ParallelConfig.__post_init__`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from app.rules.derived import derived
from app.rules.derived.hardware import device_count, machine_of
from app.serve_config.serve_config import Abstain, ServeConfig

TP: Final = "tensor_parallel_size"
PP: Final = "pipeline_parallel_size"
PCP: Final = "prefill_context_parallel_size"
DCP: Final = "decode_context_parallel_size"
DP: Final = "data_parallel_size"
LOCAL: Final = "data_parallel_size_local"
EXECUTOR: Final = "distributed_executor_backend"
ALL2ALL: Final = "all2all_backend"
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

_DEFAULT_ALL2ALL: Final = "allgather_reducescatter"
_REMOVED_ALL2ALL: Final = frozenset({"naive", "pplx"})
# Backends with which expert layers also split the sequence, by the first release that has them.
_SEQUENCE_PARALLEL: Final = frozenset(
    {"allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_v2"}
    | {"flashinfer_nvlink_one_sided", "passthrough", "nixl_ep"}
    | {"mori_high_throughput", "mori_low_latency"}
)
# MoE backends that exchange tokens themselves (`config/kernel.py::FLASHINFER_MOE_EP_BACKENDS`).
SELF_DISPATCHING: Final = frozenset(
    {"flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm"}
)


@dataclass(frozen=True, slots=True)
class Launch:
    """How one process takes part in data parallelism.

    Attributes:
        rank: first data-parallel rank of this process.
        local_size: ranks that it starts.
        external_lb, hybrid_lb: who spreads requests; neither means vLLM over all ranks.
    """

    rank: int
    local_size: int
    external_lb: bool
    hybrid_lb: bool

    @property
    def local_engines_only(self) -> bool:
        """Whether the front end talks to its own engines only."""
        return self.external_lb or self.hybrid_lb


def size(config: ServeConfig, dest: str, least: int = 1) -> int:
    """Give a parallel size or count; 1 where this version has no such option.

    Raises:
        Abstain: the value is refused by its own check.
        UnresolvedValue: it depends on an unresolved variable.
    """
    value = config[dest]
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Abstain(f"a valid {dest}")
    return value


def number(config: ServeConfig, dest: str) -> int | None:
    """Give a number that may be left out.

    Raises:
        Abstain: the value is no number.
        UnresolvedValue: it depends on an unresolved variable.
    """
    value = config[dest]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise Abstain(f"a valid {dest}")
    return value


def variable_number(config: ServeConfig, name: str, default: int) -> int:
    """Read a variable as `int(os.getenv(name, default))`.

    Raises:
        Abstain: its text is no number, with which vLLM does not start.
        UnresolvedValue: it depends on an unresolved variable.
    """
    variable = config.variable(name)
    if variable is None:
        return default
    try:
        return int(variable.value)
    except ValueError:
        raise Abstain(f"{name} as a number") from None


def since(config: ServeConfig, version: str) -> bool:
    """Whether the catalogue's version is `version` or newer; a fork counts as its release."""
    own = config.catalogue.version
    return Version(own.base_version) >= Version(version)


def nodes_span(config: ServeConfig) -> int:
    """Give the devices of one data-parallel rank as the check of `--nnodes` counts them.

    Prefill context parallelism counts from 0.30 on.
    """
    ranks = size(config, TP) * size(config, PP)
    return ranks * size(config, PCP) if since(config, "0.30") else ranks


def is_multi_port(config: ServeConfig) -> bool:
    """Whether one supervisor starts a server for each local rank."""
    return bool(config["data_parallel_multi_port_external_lb"])


@derived
def launch_of(config: ServeConfig) -> Launch | None:
    """Settle rank, local size and load balancing; None where vLLM refuses before it has them.

    With `--data-parallel-multi-port-external-lb` it is what the first server gets.
    """
    dp, local = size(config, DP), number(config, LOCAL)
    start, rank = number(config, "data_parallel_start_rank"), number(config, "data_parallel_rank")
    external = bool(config["data_parallel_external_lb"])
    hybrid = bool(config["data_parallel_hybrid_lb"])
    headless = is_headless(config)
    if is_multi_port(config):
        node = number(config, "node_rank") or 0
        first = start if start is not None else node * (local or 0)
        return Launch(first, 1, external_lb=True, hybrid_lb=False)
    if hybrid and (headless or external):
        return None
    inferred = 0
    nnodes = size(config, "nnodes")
    if nnodes > 1:
        span = nodes_span(config)
        node = number(config, "node_rank") or 0
        if config["data_parallel_backend"] != "mp" or (dp * span) % nnodes:
            return None
        if not 0 <= node < nnodes:
            return None
        here = dp * span // nnodes
        inferred = node * here // span
        if dp > 1 and external:
            if rank is None or not since(config, "0.31"):
                if since(config, "0.31") and nnodes % dp:
                    return None
                rank = inferred
        elif local is None:
            local = max(here // span, 1)
    if external or rank is not None:
        if rank is None or local not in (1, None):
            return None
        return Launch(rank, 1, external_lb=True, hybrid_lb=False)
    if local is None:
        return None if hybrid else Launch(0, _whole_local_size(config), False, False)
    hybrid = hybrid or (start is not None and not headless)
    external = hybrid and local == 1
    hybrid = hybrid and local not in (1, dp)
    return Launch(inferred if start is None else start, local, external, hybrid)


def _whole_local_size(config: ServeConfig) -> int:
    if config["data_parallel_backend"] == "ray":
        strategy = config.variable("VLLM_RAY_DP_PACK_STRATEGY")
        if strategy is not None and strategy.value == "span":
            return 1
    return size(config, DP)


@derived
def takes_dp_from_environment(config: ServeConfig) -> bool:
    """Whether `VLLM_DP_SIZE` and its kin decide, as no data parallelism was asked for."""
    launch = launch_of(config)
    return size(config, DP) <= 1 and launch is not None and launch.local_size != 0


@derived
def data_parallel_size(config: ServeConfig) -> int:
    """Give the number of data-parallel ranks that vLLM runs with.

    Where vLLM refuses the launch, what was asked for.
    """
    if takes_dp_from_environment(config):
        return variable_number(config, "VLLM_DP_SIZE", 1)
    return size(config, DP)


@derived
def world_size(config: ServeConfig) -> int:
    """Give the number of devices of one data-parallel rank (`ParallelConfig.world_size`).

    With the external launcher it is that of all ranks that were asked for.
    """
    ranks = size(config, TP) * size(config, PP) * size(config, PCP)
    return ranks * size(config, DP) if config[EXECUTOR] == "external_launcher" else ranks


@derived
def executor(config: ServeConfig) -> str:
    """Give the executor: `mp`, `uni`, `ray`, `external_launcher` or the path of a class.

    A placement group of a Ray job around vLLM is not known here and taken to be absent.
    """
    given = config[EXECUTOR]
    if given is not None:
        if not isinstance(given, str):
            raise Abstain(f"a valid {EXECUTOR}")
        return given
    if world_size(config) * data_parallel_size(config) == 1:
        return "uni"
    several_nodes = machine_of(config).is_cuda and size(config, "nnodes") > 1
    return "ray" if config["data_parallel_backend"] == "ray" and not several_nodes else "mp"


@derived
def nodes_within_rank(config: ServeConfig) -> int | None:
    """Give the nodes that one data-parallel rank spans; None where they do not divide.

    Source: `config/parallel.py::ParallelConfig.nnodes_within_dp`, which only refuses from 0.31.
    """
    nnodes, launch = size(config, "nnodes"), launch_of(config)
    if nnodes == 1 or launch is None or launch.local_size < 1:
        return 1
    groups = data_parallel_size(config) // launch.local_size
    if groups < 1:
        return 1
    if launch.external_lb:
        return max(nnodes // groups, 1)
    return None if nnodes % groups else nnodes // groups


@derived
def all2all_backend(config: ServeConfig) -> str:
    """Give the backend that exchanges tokens between experts."""
    given = config[ALL2ALL]
    if given is None:
        given = _DEFAULT_ALL2ALL
    if not isinstance(given, str):
        raise Abstain(f"a valid {ALL2ALL}")
    if given in _REMOVED_ALL2ALL:
        given = _DEFAULT_ALL2ALL
    if given == _DEFAULT_ALL2ALL and dispatches_itself(config):
        return "passthrough"
    return given


@derived
def moe_backend(config: ServeConfig) -> str:
    """Give the kernels for experts: the option wins over `--kernel-config`."""
    given = config["moe_backend"]
    if given in (None, "auto"):
        given = config["kernel_config.moe_backend"]
    return "auto" if given is None else str(given).lower().replace("-", "_")


def dispatches_itself(config: ServeConfig) -> bool:
    """Whether the MoE backend exchanges tokens itself (0.32 and newer)."""
    return since(config, "0.32") and moe_backend(config) in SELF_DISPATCHING


def microbatches(config: ServeConfig) -> int:
    """Give the number of microbatches; 1 or less is none (`ParallelConfig.num_ubatches`)."""
    return 2 if config["enable_dbo"] else number(config, "ubatch_size") or 0


@derived
def splits_sequence_in_experts(config: ServeConfig) -> bool:
    """Whether expert layers also split the sequence (`use_sequence_parallel_moe`)."""
    return (
        bool(config["enable_expert_parallel"])
        and size(config, TP) > 1
        and data_parallel_size(config) > 1
        and all2all_backend(config) in _SEQUENCE_PARALLEL
    )


@derived
def api_servers(config: ServeConfig) -> int:
    """Give the number of API server processes; 0 in headless mode.

    Source: `entrypoints/cli/serve.py::ServeSubcommand.cmd`.
    """
    given = number(config, "api_server_count")
    if config["headless"]:
        return 0
    if is_multi_port(config) or uses_rust_frontend(config):
        return 1
    if given is None:
        given = _default_api_servers(config)
    return min(given, 1) if config["enable_elastic_ep"] else given


def _default_api_servers(config: ServeConfig) -> int:
    if config["data_parallel_external_lb"] or config["data_parallel_rank"] is not None:
        return 1
    if config["data_parallel_hybrid_lb"] or config["data_parallel_start_rank"] is not None:
        return number(config, LOCAL) or 1
    return size(config, DP)


def uses_rust_frontend(config: ServeConfig) -> bool:
    """Whether `VLLM_USE_RUST_FRONTEND` asks for it."""
    return variable_number(config, "VLLM_USE_RUST_FRONTEND", 0) != 0


def is_headless(config: ServeConfig) -> bool:
    """Whether the process starts engines without an API server."""
    return bool(config["headless"]) or api_servers(config) < 1


@derived
def visible_devices(config: ServeConfig) -> int:
    """Give how many devices the process sees at most, from hardware or `CUDA_VISIBLE_DEVICES`.

    Raises:
        Abstain: neither says.
    """
    if config.hardware is not None and config.hardware.count is not None:
        return device_count(config)
    listed = config.variable(VISIBLE)
    if listed is None or not machine_of(config).is_cuda_alike:
        return device_count(config)
    return len([part for part in listed.value.split(",") if part.strip()])
