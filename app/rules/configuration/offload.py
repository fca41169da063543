"""Weights kept on the host: `--cpu-offload-gb` (UVA) and prefetching groups of layers.

Source: `config/offload.py::OffloadConfig.validate_offload_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "offload"
_SOURCE: Final = "vllm/config/offload.py::OffloadConfig.validate_offload_config"
_BACKEND: Final = "offload_backend"
_GROUP: Final = "offload_group_size"
_IN_GROUP: Final = "offload_num_in_group"
_STEP: Final = "offload_prefetch_step"
_CPU: Final = "cpu_offload_gb"


def _prefetches(config: ServeConfig) -> bool:
    return config[_BACKEND] == "prefetch" or (_number(config, _GROUP) or 0) > 0


def _number(config: ServeConfig, dest: str) -> float | None:
    value = config[dest]
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


@rule(
    id="offload-group",
    title="More layers of a group are offloaded than it has",
    explanation="Of each `--offload-group-size` layers the last `--offload-num-in-group` (1 if "
    "left out) are kept on the host. The group size is 0 if left out, so that "
    "`--offload-backend prefetch` alone is refused.",
    remedy="Give a group size of at least the number in a group.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example("vllm serve m --offload-group-size 4 --offload-num-in-group 5"),
        Example("vllm serve m --offload-backend prefetch"),
    ),
    good=(
        Example("vllm serve m --offload-group-size 4 --offload-num-in-group 2"),
        Example("vllm serve m --offload-num-in-group 2"),
    ),
    covers=("offload-num-in-group",),
)
def group(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two numbers."""
    if not _prefetches(config):
        return
    layers, offloaded = _number(config, _GROUP), _number(config, _IN_GROUP)
    if layers is None or offloaded is None or offloaded <= layers:
        return
    place = next(
        (p for p in (config.place(d) for d in (_IN_GROUP, _GROUP, _BACKEND)) if p is not None),
        None,
    )
    fix = Fix(f"set --offload-num-in-group {layers}", (SetFlag(_IN_GROUP, layers),), safe=False)
    if layers < 1:
        fix = Fix("leave the backend to vLLM", (RemoveFlag(_BACKEND),), safe=False)
    yield group.finding(
        f"{offloaded} of every {layers} layers cannot be offloaded",
        location=place,
        fix=fix,
        engine_message=f"offload_num_in_group ({offloaded}) must be <= offload_group_size "
        f"({layers})",
        evidence={_IN_GROUP: offloaded, _GROUP: layers},
    )


@rule(
    id="offload-prefetch-step",
    title="Prefetching needs a step",
    explanation="`--offload-prefetch-step` is how many layers ahead weights are fetched. 0 would "
    "fetch none.",
    remedy="Give 1 or more.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    bad=(Example("vllm serve m --offload-group-size 4 --offload-prefetch-step 0"),),
    good=(
        Example("vllm serve m --offload-group-size 4"),
        Example("vllm serve m --offload-prefetch-step 0", note="nothing is prefetched"),
    ),
    covers=("offload-prefetch-step",),
)
def prefetch_step(config: ServeConfig) -> Iterator[Finding]:
    """Look for a step of 0."""
    if _number(config, _STEP) == 0 and _prefetches(config):
        yield prefetch_step.finding(
            "--offload-prefetch-step is 0, and weights are prefetched",
            location=config.place(_STEP),
            fix=Fix("leave the step at 1", (RemoveFlag(_STEP),), safe=False),
            engine_message="offload_prefetch_step (0) must be >= 1 when prefetch offloading is "
            "enabled",
        )


@rule(
    id="offload-ignored",
    title="One of two ways to offload weights is ignored",
    explanation="Weights are either read from the host in place (`--cpu-offload-gb`) or "
    "prefetched in groups of layers. With both asked for, the backend decides; `auto` takes "
    "prefetching.",
    remedy="Drop the settings of the other backend.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example("vllm serve m --offload-backend uva --offload-group-size 4"),
        Example(
            "vllm serve m --offload-backend prefetch --offload-group-size 4 --cpu-offload-gb 4"
        ),
        Example("vllm serve m --offload-group-size 4 --cpu-offload-gb 4"),
    ),
    good=(
        Example("vllm serve m --offload-group-size 4"),
        Example("vllm serve m --cpu-offload-gb 4"),
    ),
    covers=("offload-uva-ignores-prefetch", "offload-prefetch-ignores-uva", "offload-auto-both"),
)
def ignored(config: ServeConfig) -> Iterator[Finding]:
    """Tell what is ignored."""
    layers, host = _number(config, _GROUP) or 0, _number(config, _CPU) or 0
    backend = config[_BACKEND]
    if layers > 0 and backend == "uva":
        dest, asked = _GROUP, layers
        because = "--offload-backend is uva"
    elif host > 0 and (backend == "prefetch" or (backend in (None, "auto") and layers > 0)):
        dest, asked = _CPU, host
        because = "weights are prefetched"
    else:
        return
    name = config.catalogue.by_dest[dest].name
    yield ignored.finding(
        f"{name} {asked} has no effect because {because}",
        location=config.place(dest),
        fix=Fix(f"drop {name}", (RemoveFlag(dest),), safe=True),
        evidence={"asked": asked, "effective": 0, "dest": dest},
    )
