"""Freeing the GPU while the engine sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_FLAGS: Final = (
    ("enable_sleep_mode", "--enable-sleep-mode", "Sleep mode is not supported on current platform"),
    (
        "enable_cumem_allocator",
        "--enable-cumem-allocator",
        "cumem allocator is not supported on current platform",
    ),
)


@rule(
    id="sleep-mode-platform",
    title="Sleep mode needs a GPU",
    explanation="Sleep mode frees GPU memory through an allocator (cumem) that exists for CUDA and "
    "ROCm. On a CPU both are refused.",
    remedy="Drop the flag.",
    severity=Severity.ERROR,
    area="model",
    source="vllm/config/model.py::ModelConfig.__post_init__",
    versions=">=0.28",
    bad=(
        Example("vllm serve m --enable-sleep-mode", gpu="cpu"),
        Example("vllm serve m --enable-cumem-allocator", gpu="cpu"),
    ),
    good=(
        Example("vllm serve m --enable-sleep-mode", gpu="NVIDIA H100"),
        Example("vllm serve m --no-enable-sleep-mode", gpu="cpu"),
        Example("vllm serve m --enable-sleep-mode", note="no hardware is given"),
    ),
)
def platform(config: ServeConfig) -> Iterator[Finding]:
    """Ask the platform."""
    for dest, option, message in _FLAGS:
        if config[dest] and machine_of(config).is_cpu:
            yield platform.finding(
                f"{option} needs a GPU, and the machine is a CPU",
                location=config.place(dest),
                fix=Fix(f"drop {option}", (RemoveFlag(dest),), safe=False),
                engine_message=message,
            )
