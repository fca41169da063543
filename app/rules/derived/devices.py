"""What is known of accelerators by their product name.

Compute capability as in NVIDIA's list (https://developer.nvidia.com/cuda-gpus), memory in GiB as
`nvidia-smi` reports it for the product (a little under the marketing figure); for AMD and Intel the
memory of the data sheet. A product sold with several memory sizes has none here: the size is then
taken from the name (`A100-40GB`) or is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final


class MachineKind(StrEnum):
    """The platform that vLLM picks on a machine."""

    CUDA = "cuda"
    ROCM = "rocm"
    CPU = "cpu"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        name: as it was given.
        kind: the platform vLLM takes on it.
        capability: CUDA compute capability; None where it has none or it is not known.
        memory_gib: as the driver reports it; None if not known.
    """

    name: str
    kind: MachineKind
    capability: tuple[int, int] | None = None
    memory_gib: float | None = None


# Word of the product name, capability, memory in GiB. The first that matches counts.
_NVIDIA: Final[tuple[tuple[str, tuple[int, int], float | None], ...]] = (
    ("gb300", (10, 3), 278.0),
    ("b300", (10, 3), 268.0),
    ("gb200", (10, 0), 184.0),
    ("b200", (10, 0), 179.1),
    ("b100", (10, 0), 179.1),
    ("gb10", (12, 1), 119.6),
    ("gh200", (9, 0), None),
    ("h200", (9, 0), 140.4),
    ("h100", (9, 0), None),
    ("h800", (9, 0), None),
    ("h20", (9, 0), None),
    ("rtx pro 6000", (12, 0), 95.6),
    ("rtx pro 5000", (12, 0), 47.8),
    ("rtx 5090", (12, 0), 31.8),
    ("rtx 5080", (12, 0), 15.9),
    ("rtx 5070", (12, 0), None),
    ("rtx 6000 ada", (8, 9), 48.0),
    ("rtx 4090", (8, 9), 24.0),
    ("rtx 4080", (8, 9), 16.0),
    ("l40s", (8, 9), 45.0),
    ("l40", (8, 9), 45.0),
    ("l20", (8, 9), 45.0),
    ("l4", (8, 9), 22.5),
    ("rtx a6000", (8, 6), 48.0),
    ("a6000", (8, 6), 48.0),
    ("rtx a5000", (8, 6), 24.0),
    ("rtx 3090", (8, 6), 24.0),
    ("a40", (8, 6), 45.0),
    ("a16", (8, 6), 15.0),
    ("a10g", (8, 6), 22.5),
    ("a10", (8, 6), 22.5),
    ("a100", (8, 0), None),
    ("a800", (8, 0), None),
    ("a30", (8, 0), 24.0),
    ("jetson agx orin", (8, 7), None),
    ("t4g", (7, 5), 15.0),
    ("t4", (7, 5), 15.0),
    ("rtx 2080 ti", (7, 5), 11.0),
    ("v100", (7, 0), None),
    ("p100", (6, 0), None),
    ("p40", (6, 1), 24.0),
)
_AMD: Final[tuple[tuple[str, float | None], ...]] = (
    ("mi355x", 288.0),
    ("mi350x", 288.0),
    ("mi325x", 256.0),
    ("mi308x", 192.0),
    ("mi300x", 192.0),
    ("mi300a", 128.0),
    ("mi250x", 64.0),
    ("mi250", 64.0),
    ("mi210", 64.0),
    ("rx 7900 xtx", 24.0),
)
# Of products with several sizes, the only one that vLLM is used with in practice.
_USUAL: Final = {"h100": 79.6, "h800": 79.6}
_AMD_NAME: Final = re.compile(r"\b(amd|instinct|radeon|mi\d{2,3}\w*|gfx\w+)\b")
_OTHER_NAME: Final = re.compile(
    r"\b(tpu|gaudi\d?|hpu|xpu|arc|max 1550|ascend\w*|npu|neuron|trainium\d?)\b"
)
_SIZE: Final = re.compile(r"(?<![\d.])(\d{1,3})\s*gi?b\b")


@lru_cache(maxsize=256)
def device_named(name: str) -> Device:
    """Tell what a product name says: `H100`, `NVIDIA A100-SXM4-40GB`, `mi300x`, `cpu`.

    A name that is not known is taken to be an NVIDIA GPU of unknown capability and memory.
    """
    text = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    if text == "cpu":
        return Device(name, MachineKind.CPU)
    size = _SIZE.search(text)
    said = float(size[1]) if size else None
    if _AMD_NAME.search(text):
        memory = next((gib for word, gib in _AMD if _mentions(text, word)), None)
        return Device(name, MachineKind.ROCM, memory_gib=said or memory)
    if _OTHER_NAME.search(text):
        return Device(name, MachineKind.OTHER, memory_gib=said)
    for word, capability, gib in _NVIDIA:
        if _mentions(text, word):
            memory = gib or said or _USUAL.get(word)
            return Device(name, MachineKind.CUDA, capability, memory)
    return Device(name, MachineKind.CUDA, memory_gib=said)


def _mentions(text: str, word: str) -> bool:
    # `h100nvl` and `h100sxm` are as common as the names with a blank.
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![0-9])", text) is not None
