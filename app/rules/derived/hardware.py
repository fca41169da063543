"""The machine: platform, devices, compute capability, memory.

Where no hardware is given, rules may take the platform to be CUDA with Triton (`assumed`), and
nothing else: capability, memory and the number of devices are then unknown and asking for them
raises `Abstain`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from app.rules.derived import derived
from app.rules.derived.devices import Device, MachineKind, device_named
from app.serve_config.serve_config import Abstain, ServeConfig

HARDWARE: Final = "the hardware (`hardware`)"
GIB: Final = 1 << 30
_LEADING_NUMBER: Final = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True)
class Machine:
    """The platform; `assumed` where no hardware was given, and then a CUDA GPU."""

    kind: MachineKind
    assumed: bool = False

    @property
    def is_cuda(self) -> bool:
        """Whether it is NVIDIA's platform (`current_platform.is_cuda()`)."""
        return self.kind is MachineKind.CUDA

    @property
    def is_rocm(self) -> bool:
        """Whether it is AMD's platform (`current_platform.is_rocm()`)."""
        return self.kind is MachineKind.ROCM

    @property
    def is_cuda_alike(self) -> bool:
        """`current_platform.is_cuda_alike()`."""
        return self.kind in (MachineKind.CUDA, MachineKind.ROCM)

    @property
    def is_cpu(self) -> bool:
        """`current_platform.is_cpu()`."""
        return self.kind is MachineKind.CPU

    @property
    def has_triton(self) -> bool:
        """Whether Triton has a driver there; the CPU wheels of vLLM come without one.

        Raises:
            Abstain: a platform whose plugin may or may not bring one.
        """
        if self.kind is MachineKind.OTHER:
            raise Abstain("whether Triton works on this hardware")
        return self.kind is not MachineKind.CPU


@derived
def machine_of(config: ServeConfig) -> Machine:
    """Tell the platform from the name of the hardware; CUDA (assumed) where none is given."""
    device = _device(config)
    if device is None:
        return Machine(MachineKind.CUDA, assumed=config.hardware is None or not _says(config))
    return Machine(device.kind)


@derived
def device_of(config: ServeConfig) -> Device:
    """Give the accelerator.

    Raises:
        Abstain: no hardware is given.
    """
    device = _device(config)
    if device is None:
        raise Abstain(HARDWARE)
    return device


@derived
def capability(config: ServeConfig) -> tuple[int, int]:
    """Give the CUDA compute capability, such as (9, 0) (`get_device_capability`).

    Raises:
        Abstain: no hardware is given, or its capability is not known.
    """
    given = config.hardware.capability if config.hardware is not None else None
    if given is not None:
        return given
    known = device_of(config).capability
    if known is None:
        raise Abstain("the compute capability of the hardware (`hardware.capability`)")
    return known


@derived
def device_memory(config: ServeConfig) -> int:
    """Give the memory of one device in bytes (`get_device_total_memory`).

    Raises:
        Abstain: no hardware is given, or its memory is not known.
    """
    given = config.hardware.memory_gib if config.hardware is not None else None
    gib = given if given is not None else device_of(config).memory_gib
    if gib is None:
        raise Abstain("the memory of the hardware (`hardware.memory_gib`)")
    return round(gib * GIB)


@derived
def device_count(config: ServeConfig) -> int:
    """Give how many devices one node has that vLLM sees (`current_platform.device_count()`).

    `CUDA_VISIBLE_DEVICES` of the proposal counts, as CUDA reads it: up to the first entry that
    is no device of the node, and none at all where a device is listed twice.

    Raises:
        Abstain: the number of devices is not given.
        UnresolvedValue: the variable depends on an unresolved one.
    """
    count = config.hardware.count if config.hardware is not None else None
    if count is None:
        raise Abstain("the number of devices (`hardware.count`)")
    visible = config.variable("CUDA_VISIBLE_DEVICES")
    if visible is not None and machine_of(config).is_cuda_alike:
        return _visible(visible.value.split(","), count)
    return count


def _visible(listed: list[str], count: int) -> int:
    """Count the devices of a list that a node of `count` devices has."""
    kind = next((kind for kind in ("GPU-", "MIG-") if listed[0].startswith(kind)), None)
    seen: list[str | int] = []
    for part in listed:
        number = _LEADING_NUMBER.match(part.strip())
        device = part if kind is not None else int(number.group()) if number else -1
        if device in seen:
            return 0
        if device < 0 if isinstance(device, int) else not device.startswith(kind or ""):
            break
        seen.append(device)
    there = (i for i, device in enumerate(seen) if isinstance(device, int) and device >= count)
    return min(count, next(there, len(seen)))


def nodes(config: ServeConfig) -> int:
    """Give how many nodes there are; 1 where it is not said."""
    given = config.hardware.nodes if config.hardware is not None else None
    return given or 1


def _says(config: ServeConfig) -> bool:
    return config.hardware is not None and config.hardware.capability is not None


@derived
def _device(config: ServeConfig) -> Device | None:
    name = config.hardware.gpu if config.hardware is not None else None
    return None if name is None else device_named(name)
