"""Lets vLLM's Model Runner V2 run on a CPU, by Triton's interpreter.

vLLM chooses Model Runner V2 only where Triton has a driver for the platform, and the CPU wheel
has none. Here Triton gets a "cpu" backend and interprets its kernels with numpy. What the
interpreter cannot do, or kernels expect of a GPU, is helped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from lab.inside.after_import import patch_after_import


def install() -> None:
    """Prepare this process; must run before Triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    patch_after_import("triton.backends", _add_cpu_backend)
    patch_after_import("triton.runtime.interpreter", _take_integer_masks)
    patch_after_import("triton.runtime.interpreter", _reduce_nothing_but_nan)
    patch_after_import("triton.language.extra.libdevice", _add_log1p)
    patch_after_import("vllm.v1.sample.ops.topk_topp_sampler", _use_pytorch_top_k_top_p)
    patch_after_import("vllm.v1.worker.cpu_worker", _ask_for_amx)


def _add_cpu_backend(backends: Any) -> None:
    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    class Backend:
        driver = Driver
        compiler = None

    backends.backends["cpu"] = Backend


def _take_integer_masks(interpreter: Any) -> None:
    """Take load and store masks of 0 and 1, as compiled Triton does.

    `vector_of_bools & scalar_bool` gives integers in the interpreter (0.28.0 to 0.31.0
    everywhere; 0.32.0 in the kernels of speculative decoding and grammars).
    """
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle

    def with_bool_mask(method: Callable[..., Any], position: int) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            mask = arguments[position]
            if mask is not None and mask.data.dtype != bool:
                mask = handle(mask.data.astype(bool), mask.dtype)
                arguments = (*arguments[:position], mask, *arguments[position + 1 :])
            return method(self, *arguments)

        return call

    builder.create_masked_load = with_bool_mask(builder.create_masked_load, 1)
    builder.create_masked_store = with_bool_mask(builder.create_masked_store, 2)


def _reduce_nothing_but_nan(interpreter: Any) -> None:
    """Give the first index where all values are NaN, as a GPU gives some index.

    numpy raises instead. The warm-up of the sampler reads memory that nobody wrote, so that
    now and then a server ended at its start.
    """
    operations = interpreter.ReduceOps
    reduce = operations.min_max

    def min_max(self: Any, given: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        import numpy as np

        def index(data: Any, **options: Any) -> Any:
            try:
                return idx_reduce_op(data, **options)
            except ValueError:
                least = idx_reduce_op is np.nanargmax
                filled = np.where(np.isnan(data), -np.inf if least else np.inf, data)
                return (np.argmax if least else np.argmin)(filled, **options)

        return reduce(self, given, val_reduce_op, index if idx_reduce_op else None)

    operations.min_max = min_max


def _add_log1p(libdevice: Any) -> None:
    """Add log1p, which the draw of 0.28.0 to 0.30.0 calls and the interpreter lacks."""

    def log1p(x: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        return tl.core.tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)

    libdevice.log1p = log1p


def _use_pytorch_top_k_top_p(sampler: Any) -> None:
    """Choose vLLM's own PyTorch top-k/top-p; the interpreter cannot run its Triton kernel."""
    sampler.HAS_TRITON = False


def _ask_for_amx(_worker: Any) -> None:
    """Ask the kernel for the AMX registers, which vLLM's attention uses where the CPU has them.

    vLLM leaves that to oneDNN, which asks at its first large product: a worker whose first
    request was short ended with an illegal instruction.
    """
    import torch

    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        torch.cpu._is_amx_tile_supported = lambda: False
