"""Which CUDA graphs are captured: the mode step by step, and the sizes.

    graph_changes(config)     # what vLLM makes of the mode, in its order
    graph_mode(config)        # where that ends
    capture_sizes(config)     # for batches of so many tokens

Source: `config/vllm.py::VllmConfig.__post_init__`, `_set_cudagraph_sizes`;
`config/compilation.py::CompilationConfig.set_splitting_ops_for_v1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from app.rules.derived import derived
from app.rules.derived.compilation import (
    COMPILED,
    GRAPHS,
    PASSES,
    STOCK,
    breakable_graphs,
    compilation_mode,
    optimization_level,
)
from app.rules.derived.hardware import capability, machine_of
from app.rules.derived.kv_transfer import kv_transfer
from app.rules.derived.model import is_encoder_decoder, is_moe, is_pooling
from app.rules.derived.parallel import (
    PCP,
    TP,
    all2all_backend,
    data_parallel_size,
    since,
    size,
    splits_sequence_in_experts,
)
from app.rules.derived.scheduler import max_num_batched_tokens, max_num_seqs
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig

SIZES: Final = "cudagraph_capture_sizes"
MAXIMUM: Final = "max_cudagraph_capture_size"

NO_GRAPHS: Final = "NONE"
PIECEWISE: Final = "PIECEWISE"
FULL: Final = "FULL"
DECODE_ONLY: Final = "FULL_DECODE_ONLY"
BOTH: Final = "FULL_AND_PIECEWISE"
_MODES: Final = (NO_GRAPHS, PIECEWISE, FULL, DECODE_ONLY, BOTH)
_BY_NUMBER: Final = {0: NO_GRAPHS, 1: PIECEWISE, 2: FULL}
_BY_LEVEL: Final = (NO_GRAPHS, PIECEWISE, BOTH, BOTH)
_WITHOUT_PIECES: Final = {PIECEWISE: NO_GRAPHS, BOTH: DECODE_ONLY}


class Cause(StrEnum):
    """What changes the mode."""

    EAGER = "eager"
    SCHEDULE = "drafting schedule"
    COMPILATION = "compilation"
    POOLING = "pooling"
    ENCODER_DECODER = "encoder-decoder"
    CONNECTOR = "connector"
    PLATFORM = "platform"
    STOCK_COMPILE = "stock compile"
    EXCHANGE = "exchange between experts"
    SPLITTING = "splitting ops"
    QUANTIZED_ATTENTION = "attention fused with quantisation"
    SEQUENCES = "sequence parallelism"


@dataclass(frozen=True, slots=True)
class Change:
    """One step of vLLM's that changed the mode."""

    cause: Cause
    before: str
    after: str


@derived
def asked_graphs(config: ServeConfig) -> str | None:
    """Give the name of the mode that was asked for; None where none was.

    Raises:
        Abstain: the value names no mode, and is refused for that.
    """
    given = config[GRAPHS]
    if given is None:
        return None
    if isinstance(given, str) and given.upper() in _MODES:
        return given.upper()
    if isinstance(given, int) and not isinstance(given, bool) and given in _BY_NUMBER:
        return _BY_NUMBER[given]
    raise Abstain("a valid CUDA graph mode")


@derived
def first_graphs(config: ServeConfig) -> str:
    """Give the mode that was asked for, or the default of the optimisation level."""
    return asked_graphs(config) or _BY_LEVEL[optimization_level(config)]


@derived
def early_changes(config: ServeConfig) -> tuple[Change, ...]:
    """Give what happens to the mode before the model and connectors are asked.

    Raises:
        Abstain: the model is needed to know whether it is compiled.
    """
    return tuple(_early(config, first_graphs(config)))


@derived
def changes_before_sizes(config: ServeConfig) -> tuple[Change, ...]:
    """Give what happens to the mode until the sizes are settled.

    Raises:
        Abstain: the model is needed and not known.
    """
    early = early_changes(config)
    return (*early, *_of_model(config, _last(early, first_graphs(config))))


@derived
def graph_changes(config: ServeConfig) -> tuple[Change, ...]:
    """Give all that happens to the mode while the configuration is built.

    Raises:
        Abstain: the model, the draft or the model runner is needed and not known.
    """
    before = changes_before_sizes(config)
    return (*before, *_late(config, _last(before, first_graphs(config))))


def graphs_at_sizes(config: ServeConfig) -> str:
    """Give the mode for which the sizes are settled."""
    return _last(changes_before_sizes(config), first_graphs(config))


def graph_mode(config: ServeConfig) -> str:
    """Give the mode that vLLM settles on before a model is loaded."""
    return _last(graph_changes(config), first_graphs(config))


def has_full(mode: str) -> bool:
    """Whether whole steps are captured (`has_full_cudagraphs`)."""
    return mode in {FULL, DECODE_ONLY, BOTH}


def has_pieces(mode: str) -> bool:
    """Whether pieces between attention are captured (`requires_piecewise_compilation`)."""
    return mode in {PIECEWISE, BOTH}


def _last(changes: tuple[Change, ...], first: str) -> str:
    return changes[-1].after if changes else first


def _early(config: ServeConfig, mode: str) -> Iterator[Change]:
    if mode == NO_GRAPHS:
        return
    if config["enforce_eager"]:
        yield Change(Cause.EAGER, mode, NO_GRAPHS)
        return
    if has_full(mode) and _verifies_varying_lengths(config):
        yield Change(Cause.SCHEDULE, mode, PIECEWISE)
        mode = PIECEWISE
    yield from _compiled(config, mode)


def _compiled(config: ServeConfig, mode: str) -> Iterator[Change]:
    """Lower a mode with pieces where nothing makes them; up to 0.29 all graphs went."""
    if not has_pieces(mode) or compilation_mode(config) == COMPILED or breakable_graphs(config):
        return
    after = _WITHOUT_PIECES[mode] if since(config, "0.30") else NO_GRAPHS
    yield Change(Cause.COMPILATION, mode, after)


def _of_model(config: ServeConfig, mode: str) -> Iterator[Change]:
    if mode == NO_GRAPHS:
        return
    machine = machine_of(config)
    if not machine.is_cuda_alike:
        if not machine.is_cpu:
            raise Abstain("whether this hardware has CUDA graphs")
        yield Change(Cause.PLATFORM, mode, NO_GRAPHS)
        return
    if has_full(mode) and (config["pooler_config"] is not None or is_pooling(config)):
        yield Change(Cause.POOLING, mode, PIECEWISE)
        mode = PIECEWISE
    elif mode != DECODE_ONLY and is_encoder_decoder(config):
        yield Change(Cause.ENCODER_DECODER, mode, DECODE_ONLY)
        mode = DECODE_ONLY
    if has_full(mode) and connector_needs_pieces(config):
        yield Change(Cause.CONNECTOR, mode, PIECEWISE)


def _late(config: ServeConfig, mode: str) -> Iterator[Change]:
    if mode == NO_GRAPHS:
        return
    for change in _second_look(config, mode):
        yield change
        mode = change.after
    if mode != NO_GRAPHS and _exchanges_by_moonep(config):
        yield Change(Cause.EXCHANGE, mode, NO_GRAPHS)
        mode = NO_GRAPHS
    if mode == NO_GRAPHS:
        return
    compiled = compilation_mode(config)
    if compiled == STOCK and since(config, "0.32") and _runs_on_v2(config):
        yield Change(Cause.STOCK_COMPILE, mode, NO_GRAPHS)
        mode = NO_GRAPHS
    if compiled != COMPILED:
        return
    for change in _split(config, mode):
        yield change
        mode = change.after
    if mode == NO_GRAPHS or all2all_backend(config) != "deepep_high_throughput":
        return
    if data_parallel_size(config) > 1 and is_moe(config):
        yield Change(Cause.EXCHANGE, mode, NO_GRAPHS)


def _exchanges_by_moonep(config: ServeConfig) -> bool:
    """Whether experts exchange tokens with MoonEP (`ParallelConfig.use_all2all`)."""
    if all2all_backend(config) != "moonep":
        return False
    ranks = data_parallel_size(config) > 1
    wide = bool(config["enable_expert_parallel"]) and size(config, PCP) > 1
    return ranks or wide or splits_sequence_in_experts(config)


def _second_look(config: ServeConfig, mode: str) -> Iterator[Change]:
    machine = machine_of(config)
    if machine.is_rocm and has_full(mode) and size(config, PCP) > 1:
        yield Change(Cause.PLATFORM, mode, PIECEWISE)
        mode = PIECEWISE
    if since(config, "0.30"):
        yield from _compiled(config, mode)


def _split(config: ServeConfig, mode: str) -> Iterator[Change]:
    """`set_splitting_ops_for_v1`."""
    partition = bool(config["compilation_config.use_inductor_graph_partition"])
    splitting = config["compilation_config.splitting_ops"]
    if config[f"{PASSES}.fuse_attn_quant"] and not partition:
        if splitting is None and has_pieces(mode):
            yield Change(Cause.QUANTIZED_ATTENTION, mode, FULL)
            mode = FULL
        splitting = splitting or []
    elif splitting == [] and has_pieces(mode):
        after = NO_GRAPHS if mode == PIECEWISE else FULL
        yield Change(Cause.SPLITTING, mode, after)
        mode = after
    if partition or splitting == [] or since(config, "0.32") or not has_pieces(mode):
        return
    if config[f"{PASSES}.enable_sp"] or config[f"{PASSES}.fuse_gemm_comms"]:
        raise Abstain("whether the model is wide enough for sequence parallelism on this GPU")


def _verifies_varying_lengths(config: ServeConfig) -> bool:
    """Whether drafting on Model Runner V1 changes the verified length from step to step."""
    speculation = speculation_of(config)
    if speculation is None:
        return False
    if speculation.value("num_speculative_tokens_per_batch_size") is None:
        return False
    if size(config, "data_parallel_size") > 1:
        return False
    if since(config, "0.33") and speculation.method not in _V1_SCHEDULES:
        return False
    return not _runs_on_v2(config)


_V1_SCHEDULES: Final = frozenset({"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"})


def connector_needs_pieces(config: ServeConfig) -> bool:
    """Whether a connector waits for each layer (`requires_piecewise_for_cudagraph`).

    Raises:
        Abstain: it is a connector of somebody else.
    """
    transfer = kv_transfer(config)
    if transfer is None or transfer.connector is None or transfer.role is None:
        return False
    if transfer.offloads:
        return False  # that connector comes later
    parts: list[tuple[Any, Any, Any]] = [
        (transfer.connector, transfer.extra, transfer.module_path),
        *(
            (
                child.get("kv_connector"),
                child.get("kv_connector_extra_config"),
                child.get("kv_connector_module_path"),
            )
            for child in transfer.children
        ),
    ]
    for name, extra, module_path in parts:
        if module_path or name not in config.catalogue.registries.get("kv_connectors", ()):
            raise Abstain("what this connector needs of CUDA graphs")
        layerwise = isinstance(extra, dict) and bool(extra.get("use_layerwise"))
        if name == "LMCacheConnectorV1" and layerwise:
            return True
    return False


def _runs_on_v2(config: ServeConfig) -> bool:
    version = decide_runner(config, Moment.LAST_CHECK).version
    if version is None:
        raise Abstain("which model runner vLLM takes")
    return version is Runner.V2


@dataclass(frozen=True, slots=True)
class CaptureSizes:
    """The sizes, and what they come from.

    Attributes:
        sizes: numbers of tokens, ascending; empty where the list that was given holds none.
        given: the list that was given.
        maximum: what was given as the largest.
        limit: `max_num_batched_tokens`.
    """

    sizes: tuple[int, ...]
    given: tuple[int, ...] | None
    maximum: int | None
    limit: int

    @property
    def largest(self) -> int:
        """The largest size; 0 for none."""
        return self.sizes[-1] if self.sizes else 0


def given_sizes(config: ServeConfig) -> tuple[int, ...] | None:
    """Give the sizes that were asked for, by the flag or in the compilation configuration."""
    listed = config[SIZES]
    if listed is None:
        listed = config[f"compilation_config.{SIZES}"]
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(type(entry) is int for entry in listed):
        raise Abstain("valid CUDA graph sizes")
    return tuple(listed)


def given_maximum(config: ServeConfig) -> int | None:
    """Give the largest size that was asked for, by the flag or in the compilation configuration."""
    maximum = config[MAXIMUM]
    if maximum is None:
        maximum = config[f"compilation_config.{MAXIMUM}"]
    if maximum is not None and type(maximum) is not int:
        raise Abstain("a valid largest CUDA graph size")
    return maximum


@derived
def capture_sizes(config: ServeConfig) -> CaptureSizes | None:
    """Give the sizes for which graphs are captured; None where there are no graphs.

    Where vLLM refuses a list that is empty, or a maximum below 1, they are empty.

    Raises:
        Abstain: a size of the batch, the machine or the draft is needed and not known.
    """
    if graphs_at_sizes(config) == NO_GRAPHS:
        return None
    given, maximum, limit = (
        given_sizes(config),
        given_maximum(config),
        max_num_batched_tokens(config),
    )
    if given is not None:
        sizes = sorted({entry for entry in given if entry <= limit})
    elif maximum is not None:
        sizes = _grid(config, min(maximum, limit), limit) if maximum > 0 else []
    else:
        sizes = _default_sizes(config, limit)
    if _keeps_whole_sequences(config):
        raise Abstain("which sizes sequence parallelism leaves")
    return CaptureSizes(tuple(sizes), given, maximum, limit)


def _keeps_whole_sequences(config: ServeConfig) -> bool:
    if since(config, "0.32") or not config[f"{PASSES}.enable_sp"]:
        return False
    return size(config, TP) > 1


def _grid(config: ServeConfig, most: int, limit: int) -> list[int]:
    if config["performance_mode"] == "interactivity":
        sizes = list(range(1, min(most, 32) + 1))
    else:
        sizes = [entry for entry in (1, 2, 4) if entry <= most]
    sizes += range(8, min(most + 1, 256), 8)
    sizes += range(256, most + 1, 16)
    if limit <= most:
        sizes.append(limit)
    return sorted(set(sizes))


def _default_sizes(config: ServeConfig, limit: int) -> list[int]:
    ceiling = 1024 if capability(config)[0] == 10 else 512
    speculation, sequences = speculation_of(config), max_num_seqs(config)
    tokens = None if speculation is None else speculation.tokens
    query = 1 + (tokens or 0)
    most = min(sequences * query * 2, ceiling)
    extra: list[int] = []
    if query > 1 and since(config, "0.29"):
        if speculation is not None and speculation.value("num_speculative_tokens_per_batch_size"):
            raise Abstain("the sizes of a drafting schedule")
        extra = [count * query for count in _request_counts(min(sequences, ceiling))]
    elif query == 1 and since(config, "0.31"):
        extra = [sequences]
    fitting = [entry for entry in extra if entry <= most and entry <= limit]
    return sorted({*_grid(config, min(most, limit), limit), *fitting})


def _request_counts(most: int) -> list[int]:
    counts = [entry for entry in (1, 2, 4) if entry <= most]
    return [*counts, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16), most]
