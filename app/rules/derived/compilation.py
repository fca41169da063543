"""How the model is compiled: the mode, and whether breakable CUDA graphs take its place.

Source: `config/vllm.py::VllmConfig.__post_init__`.
"""

from __future__ import annotations

from typing import Final

from app.rules.derived import derived
from app.rules.derived.devices import MachineKind
from app.rules.derived.hardware import machine_of
from app.rules.derived.model_class import architectures
from app.rules.derived.model_types import model_dtype, quantization_method
from app.rules.derived.parallel import since
from app.serve_config.serve_config import Abstain, ServeConfig

CONFIG: Final = "compilation_config"
MODE: Final = "compilation_config.mode"
GRAPHS: Final = "compilation_config.cudagraph_mode"
PASSES: Final = "compilation_config.pass_config"
BREAKABLE: Final = "VLLM_USE_BREAKABLE_CUDAGRAPH"
NO_COMPILE: Final = "TORCH_COMPILE_DISABLE"

UNCOMPILED: Final = "NONE"
STOCK: Final = "STOCK_TORCH_COMPILE"
COMPILED: Final = "VLLM_COMPILE"


@derived
def asked_compilation(config: ServeConfig) -> str | None:
    """Give the name of the mode that was asked for; None where none was.

    Raises:
        Abstain: the value names no mode, and is refused for that.
    """
    given = config[MODE]
    if given is None:
        return None
    kind = config.catalogue.config_classes["CompilationConfig"].fields["mode"].type
    members, values = kind.get("members", ()), kind.get("values", ())
    if isinstance(given, str) and given.upper() in members:
        return given.upper()
    if isinstance(given, int) and not isinstance(given, bool) and given in values:
        return str(members[values.index(given)])
    raise Abstain("a valid compilation mode")


@derived
def optimization_level(config: ServeConfig) -> int:
    """Give the number of the optimisation level.

    Raises:
        Abstain: the value names no level, and is refused for that.
    """
    given = str(config["optimization_level"]).rsplit(".", 1)[-1].upper().removeprefix("O")
    if given not in {"0", "1", "2", "3"}:
        raise Abstain("a valid optimisation level")
    return int(given)


def is_disabled(config: ServeConfig) -> bool:
    """Whether the environment turns `torch.compile` off; only "1" does."""
    variable = config.variable(NO_COMPILE)
    return variable is not None and variable.value == "1"


@derived
def breakable_graphs(config: ServeConfig) -> bool:
    """Whether CUDA graphs break at attention, which turns compilation off.

    Source: `_maybe_enable_breakable_cudagraph`; up to 0.28 within `__post_init__`.

    Raises:
        Abstain: the model, or what ROCm or batch invariance make of it, is not known.
    """
    variable = config.variable(BREAKABLE)
    if variable is not None:
        return variable.value == "1"
    return breakable_by_default(config)


@derived
def breakable_by_default(config: ServeConfig) -> bool:
    """Whether vLLM turns them on by itself for the model.

    Raises:
        Abstain: the model, or what ROCm or batch invariance make of it, is not known.
    """
    listed = set(config.catalogue.runner.breakable_graph_architectures)
    named = any(name in listed for name in architectures(config))
    if named and machine_of(config).kind is MachineKind.ROCM:
        raise Abstain("whether vLLM uses breakable CUDA graphs for this model on ROCm")
    if not named and since(config, "0.31") and _may_break_for_invariance(config):
        raise Abstain("whether batch invariance makes vLLM use breakable CUDA graphs")
    return named


@derived
def compilation_mode(config: ServeConfig) -> str:
    """Give the name of the mode that vLLM settles on, before a platform changes it.

    Raises:
        Abstain: the model is needed and not known.
    """
    if config["enforce_eager"] or is_disabled(config):
        return UNCOMPILED
    asked = asked_compilation(config)
    if asked is None and optimization_level(config) == 0:
        return UNCOMPILED
    if asked == UNCOMPILED or breakable_graphs(config):
        return UNCOMPILED
    return asked or COMPILED


def _may_break_for_invariance(config: ServeConfig) -> bool:
    """Whether graphs may break for batch invariance: of some sizes of plain bfloat16 models.

    Source: `_uses_breakable_cudagraph_for_batch_invariance`.
    """
    variable = config.variable("VLLM_BATCH_INVARIANT")
    if variable is None or variable.value.strip() in {"", "0"}:
        return False
    if config["enforce_eager"] or not machine_of(config).is_cuda:
        return False
    return quantization_method(config) is None and model_dtype(config) == "bfloat16"
