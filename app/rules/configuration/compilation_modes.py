"""Compilation modes that were asked for, and what vLLM makes of them.

Source of most: `config/vllm.py::VllmConfig.__post_init__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.compilation_options import AREA, options
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.compilation import (
    BREAKABLE,
    COMPILED,
    CONFIG,
    GRAPHS,
    MODE,
    NO_COMPILE,
    UNCOMPILED,
    asked_compilation,
    breakable_by_default,
    breakable_graphs,
    is_disabled,
    optimization_level,
)
from app.rules.derived.cuda_graphs import (
    MAXIMUM,
    NO_GRAPHS,
    SIZES,
    asked_graphs,
    given_maximum,
    given_sizes,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_SPLITTING: Final = "vllm/config/compilation.py::CompilationConfig.set_splitting_ops_for_v1"
_WARMUP: Final = "kernel_config.enable_jit_warmup"

KIMI: Final = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 27,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


@rule(
    id="compilation-eager",
    title="--enforce-eager overrides compilation settings",
    explanation="It sets the compilation mode and the CUDA graph mode to `none`, and from 0.32 on "
    "also turns the warm-up of JIT kernels off, unless with fault tolerance. Sizes of graphs are "
    "then not used.",
    remedy="Drop `--enforce-eager`, or the other settings.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    covers=("eager-disables-graphs", "eager-disables-graphs-ft"),
    bad=(
        Example("vllm serve m --enforce-eager -cc.cudagraph_mode=FULL"),
        Example("vllm serve m --enforce-eager -cc.mode=3"),
        Example("vllm serve m --enforce-eager --cudagraph-capture-sizes 1 2 4"),
    ),
    good=(
        Example("vllm serve m --enforce-eager"),
        Example("vllm serve m --enforce-eager -cc.mode=none -cc.cudagraph_mode=none"),
        Example("vllm serve m -cc.cudagraph_mode=FULL"),
    ),
)
def eager(config: ServeConfig) -> Iterator[Finding]:
    """Look for what it overrides."""
    if not config["enforce_eager"]:
        return
    for dest, asked, effective in _overridden(config):
        yield eager.finding(
            f"{dest} is {asked}, but vLLM will use {effective}, because of --enforce-eager",
            location=config.place("enforce_eager"),
            related=tuple(place for place in (config.place(dest),) if place is not None),
            fix=Fix("drop --enforce-eager", (RemoveFlag("enforce_eager"),), safe=False),
            evidence={"dest": dest, "asked": asked, "effective": effective},
        )


def _overridden(config: ServeConfig) -> Iterator[tuple[str, object, object]]:
    asked = asked_compilation(config)
    if asked not in {None, UNCOMPILED}:
        yield MODE, asked, UNCOMPILED
    graphs = asked_graphs(config)
    if graphs not in {None, NO_GRAPHS}:
        yield GRAPHS, graphs, NO_GRAPHS
    sizes, maximum = given_sizes(config), given_maximum(config)
    if sizes:
        yield SIZES if config[SIZES] is not None else f"{CONFIG}.{SIZES}", list(sizes), []
    if maximum:
        yield MAXIMUM if config[MAXIMUM] is not None else f"{CONFIG}.{MAXIMUM}", maximum, 0
    if config[_WARMUP] is True and config.given("kernel_config"):
        fields = config.catalogue.config_classes["KernelConfig"].fields
        if "enable_jit_warmup" in fields and not config["enable_fault_tolerance"]:
            yield _WARMUP, True, False


@rule(
    id="compilation-disabled",
    title="The environment turns compilation off",
    explanation=f"`{NO_COMPILE}=1` sets the compilation mode to `none`, whatever was asked for.",
    remedy=f"Unset `{NO_COMPILE}`, or say `-cc.mode=none`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    covers=("torch-compile-disable-env",),
    bad=(
        Example(f"{NO_COMPILE}=1 vllm serve m"),
        Example(f"{NO_COMPILE}=1 vllm serve m -cc.mode=3"),
    ),
    good=(
        Example(f"{NO_COMPILE}=0 vllm serve m"),
        Example(f"{NO_COMPILE}=1 vllm serve m -cc.mode=none"),
        Example(f"{NO_COMPILE}=1 vllm serve m --enforce-eager"),
        Example(f"{NO_COMPILE}=1 vllm serve m -O0"),
    ),
)
def disabled(config: ServeConfig) -> Iterator[Finding]:
    """Look for a mode that it takes away."""
    if not is_disabled(config) or config["enforce_eager"]:
        return
    asked = asked_compilation(config)
    if asked == UNCOMPILED or (asked is None and optimization_level(config) == 0):
        return
    variable = config.variable(NO_COMPILE)
    yield disabled.finding(
        f"{NO_COMPILE}=1 turns compilation off"
        + ("" if asked is None else f", and {asked} was asked for"),
        location=None if variable is None else variable.location,
        evidence={"dest": MODE, "asked": asked, "effective": UNCOMPILED},
    )


@rule(
    id="compilation-breakable",
    title="Breakable CUDA graphs turn compilation off",
    explanation=f"With `{BREAKABLE}=1`, or for a model for which vLLM sets that by itself, graphs "
    "break at attention without compiling, and the compilation mode becomes `none` whatever was "
    "asked for.",
    remedy=f"Set `{BREAKABLE}=0`, or leave the mode out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._maybe_enable_breakable_cudagraph",
    covers=("breakable-cudagraph-disables-compile",),
    bad=(
        Example(f"{BREAKABLE}=1 vllm serve m -cc.mode=3"),
        Example("vllm serve m -cc.mode=3", model_config=KIMI),
    ),
    good=(
        Example(f"{BREAKABLE}=1 vllm serve m"),
        Example(f"{BREAKABLE}=0 vllm serve m -cc.mode=3", model_config=KIMI),
        Example("vllm serve m -cc.mode=3", model_config=DENSE),
    ),
)
def breakable(config: ServeConfig) -> Iterator[Finding]:
    """Look for a mode that was asked for."""
    asked = asked_compilation(config)
    if asked in {None, UNCOMPILED} or config["enforce_eager"] or is_disabled(config):
        return
    if breakable_graphs(config):
        yield breakable.finding(
            f"the mode is {asked}, but vLLM will use {UNCOMPILED}, because CUDA graphs break at "
            "attention here",
            location=config.place(MODE),
            fix=Fix("leave the mode out", (RemoveFlag(MODE),), safe=True),
            evidence={"dest": MODE, "asked": asked, "effective": UNCOMPILED},
        )


@rule(
    id="compilation-breakable-default",
    title="vLLM runs this model in breakable CUDA graphs",
    explanation="The model's code cannot be compiled as others are, so vLLM turns compilation off "
    "and lets CUDA graphs break at attention.",
    remedy=f"Nothing to do; `{BREAKABLE}=0` opts out.",
    severity=Severity.INFO,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._maybe_enable_breakable_cudagraph",
    covers=("breakable-cudagraph-auto",),
    bad=(Example("vllm serve m", model_config=KIMI),),
    good=(
        Example(f"{BREAKABLE}=0 vllm serve m", model_config=KIMI),
        Example("vllm serve m", model_config=DENSE),
    ),
)
def breakable_default(config: ServeConfig) -> Iterator[Finding]:
    """Look for the model where nothing else turns compilation off."""
    if config.variable(BREAKABLE) is not None or config["enforce_eager"]:
        return
    asked = asked_compilation(config)
    if asked is None and optimization_level(config) > 0 and breakable_by_default(config):
        yield breakable_default.finding(
            "vLLM sets VLLM_USE_BREAKABLE_CUDAGRAPH=1 for this model, and does not compile it",
            location=config.place("model_tag") or config.place("model"),
            evidence={"dest": MODE, "asked": None, "effective": UNCOMPILED},
        )


_INDUCTOR_ONLY: Final = (
    "inductor_compile_config",
    "inductor_passes",
    "pass_config",
    "compile_sizes",
    "compile_ranges_endpoints",
    "splitting_ops",
    "use_inductor_graph_partition",
)


@rule(
    id="compilation-inductor-off",
    title="Settings of Inductor are given, and Inductor is off",
    explanation="With `backend: eager`, or a mode other than `vllm_compile`, settings that "
    "only count during Inductor's compilation are ignored.",
    remedy="Leave them out, or compile with `vllm_compile` and `inductor`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    covers=("inductor-disabled",),
    bad=(
        Example(options('"mode": 0, "compile_sizes": [1, 2]')),
        Example(options('"mode": 3, "backend": "eager", "pass_config": {"fuse_act_quant": true}')),
    ),
    good=(
        Example(options('"mode": 3, "compile_sizes": [1, 2]')),
        Example(options('"mode": 0')),
    ),
)
def inductor_off(config: ServeConfig) -> Iterator[Finding]:
    """Look for such settings where it was turned off."""
    if not config[CONFIG]:
        return
    given = [key for key in _INDUCTOR_ONLY if config[f"{CONFIG}.{key}"]]
    if not given:
        return
    asked = asked_compilation(config)
    uses_eager = config[f"{CONFIG}.backend"] == "eager"
    if not uses_eager and asked in {None, COMPILED}:
        return
    why = "the backend is eager" if uses_eager else f"the mode is {asked}"
    yield inductor_off.finding(
        f"{', '.join(given)} will not count, because {why}",
        location=config.place(CONFIG),
    )
