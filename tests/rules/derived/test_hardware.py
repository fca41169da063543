"""The machine is what was said of it, and no more."""

from __future__ import annotations

import pytest

from app.proposal.proposal import Hardware
from app.rules.derived.devices import MachineKind, device_named
from app.rules.derived.hardware import (
    GIB,
    capability,
    device_count,
    device_memory,
    machine_of,
    nodes,
)
from app.serve_config.serve_config import Abstain
from tests.rules.derived.deriving import config_of


@pytest.mark.parametrize(
    ("name", "known", "gib"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), 80.0),
        ("H100", (9, 0), 79.6),
        ("H100 NVL 94GB", (9, 0), 94.0),
        ("nvidia-h200", (9, 0), 140.4),
        ("NVIDIA-B200", (10, 0), 179.1),
        ("GB200", (10, 0), 184.0),
        ("A100-SXM4-40GB", (8, 0), 40.0),
        ("A100", (8, 0), None),
        ("A10G", (8, 6), 22.5),
        ("L40S-48GB", (8, 9), 45.0),
        ("L4", (8, 9), 22.5),
        ("Tesla T4", (7, 5), 15.0),
        ("Tesla V100-SXM2-32GB", (7, 0), 32.0),
        ("GeForce RTX 4090", (8, 9), 24.0),
        ("Some New GPU", None, None),
    ],
)
def test_a_product_name_tells_capability_and_memory(
    name: str, known: tuple[int, int] | None, gib: float | None
) -> None:
    device = device_named(name)
    assert (device.kind, device.capability, device.memory_gib) == (MachineKind.CUDA, known, gib)


def test_other_makers_have_memory_but_no_cuda_capability() -> None:
    device = device_named("AMD Instinct MI300X")
    assert (device.kind, device.capability) == (MachineKind.ROCM, None)
    assert device.memory_gib == 192.0


def test_without_hardware_only_a_cuda_platform_is_assumed() -> None:
    config = config_of()
    machine = machine_of(config)
    assert (machine.is_cuda, machine.assumed, machine.has_triton) == (True, True, True)
    assert nodes(config) == 1
    for fact in (capability, device_memory, device_count):
        with pytest.raises(Abstain):
            fact(config)


def test_what_is_said_goes_before_what_the_name_tells() -> None:
    hardware = Hardware("H100", 4, memory_gib=64.0, capability=(9, 9), nodes=2)
    config = config_of(hardware=hardware)
    assert capability(config) == (9, 9)
    assert device_memory(config) == 64 * GIB
    assert (device_count(config), nodes(config)) == (4, 2)


def test_a_capability_alone_is_a_cuda_machine() -> None:
    config = config_of(hardware=Hardware(capability=(8, 0)))
    assert (machine_of(config).is_cuda, machine_of(config).assumed) == (True, False)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("", 8),
        ("CUDA_VISIBLE_DEVICES=0,1", 2),
        ("CUDA_VISIBLE_DEVICES=", 0),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7,8,9", 8),
        ("CUDA_VISIBLE_DEVICES=0,9", 1),
        ("CUDA_VISIBLE_DEVICES=9,0", 0),
        ("CUDA_VISIBLE_DEVICES=-1", 0),
        ("CUDA_VISIBLE_DEVICES=0,,1", 1),
        ("CUDA_VISIBLE_DEVICES=0,x,1", 1),
        ("CUDA_VISIBLE_DEVICES=3,1,3", 0),
        ("CUDA_VISIBLE_DEVICES=0,9,0", 0),
        ("CUDA_VISIBLE_DEVICES=GPU-8f,GPU-2a", 2),
        ("CUDA_VISIBLE_DEVICES=GPU-8f,1", 1),
    ],
)
def test_visible_devices_limit_the_count(options: str, count: int) -> None:
    assert device_count(config_of(options, hardware=Hardware("H100", 8))) == count
