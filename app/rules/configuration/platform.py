"""What a platform does not have, and what it asks of its environment variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, UnsetEnvironment

AREA: Final = "platform"
_HIP: Final = "HIP_VISIBLE_DEVICES"
_CUDA: Final = "CUDA_VISIBLE_DEVICES"
_GPU: Final = "AMD Instinct MI300X"


@rule(
    id="platform-rocm-visible-devices",
    title="On ROCm the two lists of visible devices must be the same",
    explanation="vLLM copies the one of `HIP_VISIBLE_DEVICES` and `CUDA_VISIBLE_DEVICES` that is "
    "set to the other, and ends on import where both are set and their texts differ. An empty "
    "text counts as not set.",
    remedy="Set `HIP_VISIBLE_DEVICES` alone.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/platforms/rocm.py::_sync_hip_cuda_env_vars",
    bad=(
        Example("HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=0 vllm serve m", gpu=_GPU),
        Example("HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES='0, 1' vllm serve m", gpu=_GPU),
    ),
    good=(
        Example("HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=0,1 vllm serve m", gpu=_GPU),
        Example("HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES= vllm serve m", gpu=_GPU),
        Example("HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=0 vllm serve m", gpu="NVIDIA H100"),
    ),
    covers=("rocm-visible-mismatch",),
)
def rocm_visible_devices(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two variables as text."""
    if _HIP not in config.environment or _CUDA not in config.environment:
        return
    if not machine_of(config).is_rocm:
        return
    hip, cuda = config.variable(_HIP), config.variable(_CUDA)
    if hip is None or cuda is None or not hip.value or not cuda.value or hip.value == cuda.value:
        return
    yield rocm_visible_devices.finding(
        f"{_HIP} is {hip.value!r} and {_CUDA} is {cuda.value!r}; on ROCm they must be the same",
        location=cuda.location,
        fix=Fix(f"unset {_CUDA}", (UnsetEnvironment(_CUDA),), safe=False),
        engine_message="Inconsistent GPU visibility env vars:",
    )


_ALLOCATED: Final = (
    ("enable_sleep_mode", "--enable-sleep-mode", "Sleep mode"),
    ("enable_cumem_allocator", "--enable-cumem-allocator", "cumem allocator"),
)


@rule(
    id="platform-sleep-mode",
    title="There is no sleep mode on a CPU",
    explanation="Sleep mode frees the memory of an accelerator, for which vLLM brings its own "
    "allocator (`--enable-cumem-allocator`). A CPU has neither, and vLLM refuses both options "
    "there.",
    remedy="Drop the option.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.__post_init__",
    bad=(
        Example("vllm serve m --enable-sleep-mode", gpu="cpu"),
        Example("vllm serve m --enable-cumem-allocator", gpu="cpu"),
    ),
    good=(
        Example("vllm serve m --enable-sleep-mode"),
        Example("vllm serve m --enable-cumem-allocator"),
        Example("vllm serve m", gpu="cpu"),
    ),
)
def sleep_mode(config: ServeConfig) -> Iterator[Finding]:
    """Look for the options on a CPU."""
    asked = next((entry for entry in _ALLOCATED if config[entry[0]]), None)
    if asked is None or not machine_of(config).is_cpu:
        return
    dest, flag, name = asked
    yield sleep_mode.finding(
        f"{flag} does not work on a CPU",
        location=config.place(dest),
        fix=Fix(f"drop {flag}", (RemoveFlag(dest),), safe=False),
        engine_message=f"{name} is not supported on current platform.",
    )
