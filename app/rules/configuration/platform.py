"""What a platform asks of its environment variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, UnsetEnvironment

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
