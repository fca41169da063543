"""A fake NVIDIA machine, so that vLLM's own code decides about CUDA configurations.

Faked at the lowest layer that vLLM asks; `vllm.platforms.cuda.NvmlCudaPlatform` and everything
above it is vLLM's:

- NVML: count, name, memory, compute capability, NVLink between all GPUs
- torch.cuda, torch.accelerator, torch.version.cuda: the same facts
- the compiled extensions of a CUDA build: importable, empty
- flags that only say "this extension was built"; FlashInfer counts as installed

Nothing here can run a kernel.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from lab.inside.after_import import patch_after_import

MIB = 1 << 20
CUDA = "13.0"
DRIVER = "580.65.06"
IN_USE = 600 * MIB
UUID = "GPU-00000000-0000-0000-0000-{:012d}"
SUPPORTED_ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
EXTENSIONS = frozenset(
    [
        *("vllm._C", "vllm._C_stable_libtorch", "vllm._deepselect_C", "vllm._flashkda_C"),
        *("vllm._moe_C", "vllm._moe_C_stable_libtorch", "vllm._qutlass_C"),
        "vllm.vllm_flash_attn._vllm_fa2_C",
        "vllm.vllm_flash_attn._vllm_fa3_C",
    ]
)
OPERATOR_NAMESPACES = frozenset(["_C", "_C_cache_ops", "_C_custom_ar", "_moe_C"])


@dataclass(frozen=True, slots=True)
class Gpu:
    """What NVML and torch report; memory in bytes, shared memory per block (opt-in) too."""

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    shared_memory: int


GPUS = {
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 81559 * MIB, 132, 232448),
    "h200": Gpu("NVIDIA H200", (9, 0), 143771 * MIB, 132, 232448),
    "b200": Gpu("NVIDIA B200", (10, 0), 183359 * MIB, 148, 232448),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 81920 * MIB, 108, 166912),
    "l40s": Gpu("NVIDIA L40S", (8, 9), 46068 * MIB, 142, 101376),
    "l4": Gpu("NVIDIA L4", (8, 9), 23034 * MIB, 58, 101376),
    "a10g": Gpu("NVIDIA A10G", (8, 6), 23028 * MIB, 80, 101376),
    "t4": Gpu("Tesla T4", (7, 5), 15360 * MIB, 40, 65536),
    "v100": Gpu("Tesla V100-SXM2-32GB", (7, 0), 32768 * MIB, 80, 98304),
}


@dataclass
class Machine:
    """The machine that this process sees; a forked child may change its own."""

    gpu: Gpu
    count: int


_machine = Machine(GPUS["h100"], 8)


def select(gpu: str, count: int) -> None:
    """Make this process see `count` GPUs of that kind."""
    _machine.gpu, _machine.count = GPUS[gpu], count


def install(specification: str) -> None:
    """Fake the machine (`h100:8`); must run before torch and vLLM are imported."""
    gpu, _, count = specification.partition(":")
    select(gpu, int(count))
    sys.meta_path.insert(0, _EmptyExtensions())
    patch_after_import("torch", _patch_torch)
    patch_after_import("vllm._custom_ops", _patch_custom_ops)
    patch_after_import("vllm.device_allocator.cumem", _patch_cumem)
    patch_after_import("vllm.platforms.cuda", _patch_platform)
    patch_after_import("vllm.third_party.pynvml", _patch_nvml)
    patch_after_import("vllm.utils.flashinfer", _patch_flashinfer)
    patch_after_import("vllm.v1.attention.ops.flashmla", _patch_flashmla)
    patch_after_import("vllm.vllm_flash_attn.flash_attn_interface", _patch_flash_attention)


class _EmptyExtensions(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in EXTENSIONS:
            return importlib.machinery.ModuleSpec(fullname, self, origin="lab")
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


def _patch_nvml(nvml: Any) -> None:
    def handle(index: int | str) -> int:
        if not 0 <= int(index) < _machine.count:
            raise nvml.NVMLError(nvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(index)

    answers = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda _flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: DRIVER,
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlDeviceGetCount": lambda: _machine.count,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: handle(str(uuid).rsplit("-", 1)[-1]),
        "nvmlDeviceGetIndex": lambda index: index,
        "nvmlDeviceGetUUID": UUID.format,
        "nvmlDeviceGetName": lambda _index: _machine.gpu.name,
        "nvmlDeviceGetCudaComputeCapability": lambda _index: _machine.gpu.capability,
        "nvmlDeviceGetMemoryInfo": lambda _index, *_: SimpleNamespace(
            total=_machine.gpu.memory, free=_machine.gpu.memory - IN_USE, used=IN_USE
        ),
        "nvmlDeviceGetP2PStatus": lambda *_: nvml.NVML_P2P_STATUS_OK,
        "nvmlDeviceGetNumaNodeId": lambda _index: 0,
        "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(
            busId=f"00000000:{index + 1:02X}:00.0"
        ),
    }
    for name, answer in answers.items():
        setattr(nvml, name, answer)


def _device_properties(_device: object = None) -> SimpleNamespace:
    gpu = _machine.gpu
    return SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory - 512 * MIB,
        multi_processor_count=gpu.multiprocessors,
        is_integrated=0,
        is_multi_gpu_board=0,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu.shared_memory,
        shared_memory_per_multiprocessor=gpu.shared_memory + 1024,
        L2_cache_size=50 * MIB,
        gcnArchName="",
        uuid="00000000-0000-0000-0000-000000000000",
    )


def _patch_torch(torch: Any) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("oracle: the GPU is fake")

    cuda, accelerator = torch.cuda, torch.accelerator
    # torch's own counting over CUDA_VISIBLE_DEVICES stays, on top of a fake NVML.
    cuda._raw_device_count_nvml = lambda: _machine.count
    cuda._raw_device_uuid_nvml = lambda: [UUID.format(i) for i in range(_machine.count)]
    cuda.device_count = accelerator.device_count = lambda: cuda._device_count_nvml()
    cuda.is_available = accelerator.is_available = lambda: True
    cuda.is_initialized = lambda: False
    cuda.current_device = accelerator.current_device_index = lambda: 0
    cuda.get_device_capability = lambda _device=None: _machine.gpu.capability
    cuda.get_device_name = lambda _device=None: _machine.gpu.name
    cuda.get_device_properties = _device_properties
    cuda.mem_get_info = lambda _device=None: (_machine.gpu.memory - IN_USE, _machine.gpu.memory)
    cuda.is_bf16_supported = lambda *_, **__: _machine.gpu.capability >= (8, 0)
    cuda.get_arch_list = lambda: list(SUPPORTED_ARCHITECTURES)
    cuda.is_current_stream_capturing = lambda: False
    cuda.synchronize = cuda.empty_cache = lambda *_, **__: None
    cuda._lazy_init = refuse
    cuda.nccl.version = lambda: (2, 28, 9)
    accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    torch.version.cuda = CUDA
    torch.distributed.is_nccl_available = lambda: True


def _patch_flash_attention(interface: Any) -> None:
    for generation in ("FA2", "FA3", "FA4"):
        if hasattr(interface, f"{generation}_AVAILABLE"):
            setattr(interface, f"{generation}_AVAILABLE", True)
            setattr(interface, f"{generation}_UNAVAILABLE_REASON", None)


def _patch_flashmla(flashmla: Any) -> None:
    flashmla._flashmla_C_AVAILABLE = True
    flashmla._flashmla_extension_C_AVAILABLE = True


def _patch_cumem(cumem: Any) -> None:
    cumem.cumem_available = True


def _patch_flashinfer(flashinfer: Any) -> None:
    flashinfer.has_flashinfer = lambda: True


def _patch_custom_ops(ops: Any) -> None:
    # What the compiled CUDA 13 extensions of the wheel answer.
    ops.cutlass_scaled_mm_supports_fp8 = lambda capability: capability >= 89
    ops.cutlass_scaled_mm_supports_block_fp8 = lambda capability: capability >= 90
    ops.cutlass_scaled_mm_supports_fp4 = lambda capability: capability >= 100
    ops.cutlass_group_gemm_supported = lambda capability: (
        capability == 90 or 100 <= capability < 110
    )
    ops.mxfp4_experts_quant_supported = lambda capability: capability >= 100
    # Modules that only name an operator (torch.ops._C.rms_norm.default) must import. Until
    # here names stay absent, so that vLLM registers nothing for them.
    import torch

    namespace: Any = torch._ops._OpNamespace
    look_up = namespace.__getattr__

    def look_up_or_name(self: Any, name: str) -> Any:
        try:
            return look_up(self, name)
        except AttributeError:
            if self.name in OPERATOR_NAMESPACES and not name.startswith("__"):
                return _Operator(f"{self.name}::{name}")
            raise

    namespace.__getattr__ = look_up_or_name


class _Operator:
    """Stands for an operator that is named and never called."""

    def __init__(self, name: str) -> None:
        self._name = self.__name__ = name

    def __getattr__(self, name: str) -> _Operator:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Operator(f"{self._name}.{name}")

    def __call__(self, *_: object, **__: object) -> None:
        raise RuntimeError(f"oracle: {self._name} called: the GPU is fake")


def _patch_platform(cuda_platform: Any) -> None:
    # The real one first asks whether torch was built with CUDA.
    import torch

    cuda_platform._cuda_device_count_stateless = lambda _visible=None: (
        torch.cuda._device_count_nvml()
    )
