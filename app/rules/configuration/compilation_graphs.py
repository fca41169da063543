"""CUDA graph modes that were asked for, and what vLLM makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.compilation_options import AREA, options
from app.rules.configuration.example_models import ENCODER, SPEECH
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.compilation import (
    BREAKABLE,
    COMPILED,
    CONFIG,
    GRAPHS,
    MODE,
    NO_COMPILE,
    PASSES,
    asked_compilation,
    breakable_graphs,
    compilation_mode,
    is_disabled,
    optimization_level,
)
from app.rules.derived.cuda_graphs import (
    NO_GRAPHS,
    Cause,
    asked_graphs,
    changes_before_sizes,
    early_changes,
    graph_changes,
    graphs_at_sizes,
    has_pieces,
)
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Edit, Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_SPLITTING: Final = "vllm/config/compilation.py::CompilationConfig.set_splitting_ops_for_v1"


@rule(
    id="compilation-graphs-need-pieces",
    title="Piecewise CUDA graphs need compilation",
    explanation="Pieces between attention exist only with the mode `vllm_compile`, or in breakable "
    "CUDA graphs. Otherwise PIECEWISE becomes NONE and FULL_AND_PIECEWISE becomes "
    "FULL_DECODE_ONLY; up to 0.29 both become NONE.",
    remedy="Compile with `vllm_compile`, or ask for FULL or FULL_DECODE_ONLY.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._normalize_piecewise_cudagraph_mode",
    covers=("cudagraph-needs-compile",),
    bad=(
        Example("vllm serve m -cc.mode=0 -cc.cudagraph_mode=PIECEWISE", model_config=DENSE),
        Example("vllm serve m -O0 -cc.cudagraph_mode=FULL_AND_PIECEWISE", model_config=DENSE),
        Example(f"{NO_COMPILE}=1 vllm serve m", model_config=DENSE),
    ),
    good=(
        Example("vllm serve m -cc.cudagraph_mode=PIECEWISE", model_config=DENSE),
        Example(
            f"{BREAKABLE}=1 vllm serve m -cc.mode=0 -cc.cudagraph_mode=PIECEWISE",
            model_config=DENSE,
        ),
        Example("vllm serve m -cc.mode=0 -cc.cudagraph_mode=FULL", model_config=DENSE),
        Example("vllm serve m -O0", model_config=DENSE),
    ),
)
def need_pieces(config: ServeConfig) -> Iterator[Finding]:
    """Look whether that changes the mode."""
    if _is_plain(config) and not is_disabled(config):
        return
    for change in early_changes(config):
        if change.cause is Cause.COMPILATION and not machine_of(config).is_cpu:
            yield need_pieces.finding(
                f"the CUDA graph mode is {change.before}{_default(config)}, but vLLM will use "
                f"{change.after}, because the model is not compiled in pieces",
                location=_place(config),
                evidence={"dest": GRAPHS, "asked": change.before, "effective": change.after},
            )


def _place(config: ServeConfig) -> Location | None:
    variable = config.variable(NO_COMPILE) if is_disabled(config) else None
    if config[GRAPHS] is not None or config[MODE] is not None:
        return config.place(CONFIG)
    return config.place("optimization_level") if variable is None else variable.location


def _is_plain(config: ServeConfig) -> bool:
    """Whether nobody said anything about modes."""
    if config[MODE] is not None or config[GRAPHS] is not None:
        return False
    return not config.given("optimization_level")


def _default(config: ServeConfig) -> str:
    return "" if config[GRAPHS] is not None else " (the default)"


@rule(
    id="compilation-graphs-of-model",
    title="The kind of model decides about CUDA graphs",
    explanation="Pooling models have no full CUDA graphs, and FULL modes become PIECEWISE; "
    "models with an encoder and a decoder have FULL_DECODE_ONLY or none.",
    remedy="Leave the mode out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    covers=("pooling-no-full-graphs", "encdec-decode-only"),
    bad=(
        Example("vllm serve m -cc.cudagraph_mode=FULL", model_config=ENCODER, gpu="H100"),
        Example("vllm serve m -cc.cudagraph_mode=PIECEWISE", model_config=SPEECH, gpu="H100"),
    ),
    good=(
        Example("vllm serve m", model_config=ENCODER, gpu="H100"),
        Example("vllm serve m -cc.cudagraph_mode=PIECEWISE", model_config=ENCODER, gpu="H100"),
        Example(
            "vllm serve m -cc.cudagraph_mode=FULL_DECODE_ONLY", model_config=SPEECH, gpu="H100"
        ),
        Example("vllm serve m -cc.cudagraph_mode=FULL", model_config=DENSE, gpu="H100"),
    ),
)
def of_model(config: ServeConfig) -> Iterator[Finding]:
    """Compare with the mode that was asked for."""
    if asked_graphs(config) in {None, NO_GRAPHS} or config["enforce_eager"]:
        return
    for change in changes_before_sizes(config):
        if change.cause in {Cause.POOLING, Cause.ENCODER_DECODER}:
            yield of_model.finding(
                f"the CUDA graph mode is {change.before}, but vLLM will use {change.after}, "
                f"because of the kind of model ({change.cause})",
                location=config.place(GRAPHS),
                fix=Fix("leave the mode out", (RemoveFlag(GRAPHS),), safe=False),
                evidence={"dest": GRAPHS, "asked": change.before, "effective": change.after},
            )


@rule(
    id="compilation-pieces-missing",
    title="Full CUDA graphs without compilation become piecewise ones, which do not exist",
    explanation="Up to 0.29 vLLM lowers full graphs of a pooling model to PIECEWISE after it has "
    "looked whether the model is compiled in pieces, and then asserts that it is.",
    remedy="Compile with `vllm_compile`, or set the CUDA graph mode to NONE.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    versions=">=0.28,<0.30",
    covers=("piecewise-needs-compile",),
    bad=(
        Example(
            "vllm serve m -cc.mode=0 -cc.cudagraph_mode=FULL", model_config=ENCODER, gpu="H100"
        ),
        Example(
            f"{NO_COMPILE}=1 vllm serve m -cc.cudagraph_mode=FULL_DECODE_ONLY",
            model_config=ENCODER,
            gpu="H100",
        ),
    ),
    good=(
        Example("vllm serve m -cc.mode=0", model_config=ENCODER, gpu="H100"),
        Example("vllm serve m -cc.mode=0 -cc.cudagraph_mode=FULL", model_config=DENSE, gpu="H100"),
        Example("vllm serve m -cc.cudagraph_mode=FULL", model_config=ENCODER, gpu="H100"),
    ),
)
def pieces_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for pieces that nothing makes, once the model was asked."""
    if asked_graphs(config) in {None, NO_GRAPHS} or config["enforce_eager"]:
        return
    asked, plain = asked_compilation(config), optimization_level(config) > 0
    if not is_disabled(config) and (asked == COMPILED or (asked is None and plain)):
        return
    mode = graphs_at_sizes(config)
    if not has_pieces(mode) or not machine_of(config).is_cuda_alike:
        return
    if compilation_mode(config) != COMPILED and not breakable_graphs(config):
        edits: tuple[Edit, ...] = (SetFlag(GRAPHS, "NONE"),)
        yield pieces_missing.finding(
            f"the CUDA graph mode {asked_graphs(config)} becomes {mode}, and without compilation "
            "there are no pieces",
            location=config.place(GRAPHS),
            fix=Fix("set cudagraph_mode to NONE", edits, safe=False),
            engine_message="Compilation mode should be CompilationMode.VLLM_COMPILE when "
            "cudagraph_mode piecewise cudagraphs is used",
        )


@rule(
    id="compilation-stock-no-graphs",
    title="Stock compilation has no CUDA graphs on Model Runner V2",
    explanation="With the mode `stock_torch_compile` vLLM sets the CUDA graph mode to NONE there.",
    remedy="Use `vllm_compile`, or set the CUDA graph mode to NONE.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._disable_cudagraphs_for_v2_stock_torch_compile",
    versions=">=0.32",
    covers=("stock-compile-no-graphs",),
    bad=(Example("vllm serve m -cc.mode=stock_torch_compile", model_config=DENSE, gpu="H100"),),
    good=(
        Example("vllm serve m -cc.mode=1 -cc.cudagraph_mode=none", model_config=DENSE, gpu="H100"),
        Example(
            "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m -cc.mode=1", model_config=DENSE, gpu="H100"
        ),
    ),
)
def stock(config: ServeConfig) -> Iterator[Finding]:
    """Look whether that changes the mode."""
    if asked_compilation(config) != "STOCK_TORCH_COMPILE":
        return
    for change in graph_changes(config):
        if change.cause is Cause.STOCK_COMPILE:
            yield stock.finding(
                f"the CUDA graph mode is {change.before}, but vLLM will use {change.after}, "
                "because stock compilation has no CUDA graphs on Model Runner V2",
                location=config.place(MODE),
                fix=Fix("set cudagraph_mode to NONE", (SetFlag(GRAPHS, "NONE"),), safe=True),
                evidence={"dest": GRAPHS, "asked": change.before, "effective": change.after},
            )


@rule(
    id="compilation-splitting-graphs",
    title="Where the graph is not split there are no piecewise CUDA graphs",
    explanation="`splitting_ops: []` keeps the graph whole: PIECEWISE becomes NONE and "
    "FULL_AND_PIECEWISE becomes FULL. `fuse_attn_quant` without "
    "`use_inductor_graph_partition` keeps it whole as well, and makes it FULL.",
    remedy="Ask for FULL or FULL_DECODE_ONLY, or use `use_inductor_graph_partition`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SPLITTING,
    covers=(
        "cc-empty-splitting-piecewise",
        "cc-empty-splitting-none",
        "cc-empty-splitting-full",
        "cc-attn-quant-forces-full",
    ),
    bad=(
        Example(options('"splitting_ops": []'), model_config=DENSE, gpu="H100"),
        Example(
            options('"splitting_ops": [], "cudagraph_mode": "PIECEWISE"'),
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            options('"pass_config": {"fuse_attn_quant": true}'), model_config=DENSE, gpu="H100"
        ),
    ),
    good=(
        Example(
            options('"splitting_ops": [], "cudagraph_mode": "FULL"'),
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            options('"pass_config": {"fuse_attn_quant": true}, "cudagraph_mode": "NONE"'),
            model_config=DENSE,
            gpu="H100",
        ),
        Example("vllm serve m", model_config=DENSE, gpu="H100"),
    ),
)
def splitting(config: ServeConfig) -> Iterator[Finding]:
    """Look whether that changes the mode."""
    if config[f"{CONFIG}.splitting_ops"] != [] and not config[f"{PASSES}.fuse_attn_quant"]:
        return
    for change in graph_changes(config):
        if change.cause in {Cause.SPLITTING, Cause.QUANTIZED_ATTENTION}:
            why = "splitting_ops is empty"
            if change.cause is Cause.QUANTIZED_ATTENTION:
                why = "fuse_attn_quant keeps attention in the graph"
            edits: tuple[Edit, ...] = (SetFlag(GRAPHS, change.after),)
            yield splitting.finding(
                f"the CUDA graph mode is {change.before}{_default(config)}, but vLLM will use "
                f"{change.after}, because {why}",
                location=config.place(CONFIG),
                fix=Fix(f"set cudagraph_mode to {change.after}", edits, safe=True),
                evidence={"dest": GRAPHS, "asked": change.before, "effective": change.after},
            )
