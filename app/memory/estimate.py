"""Weights, one request's KV cache and a margin, against what a GPU has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from app.memory.kv_cache import request_bytes
from app.memory.tokens import BYTES
from app.memory.weights import bytes_per_weight, parameters
from app.rules.derived import derived
from app.rules.derived.hardware import device_memory
from app.rules.derived.model_length import max_model_len
from app.rules.derived.model_sizes import hidden_size, vocab_size
from app.rules.derived.model_types import model_dtype
from app.rules.derived.parallel import data_parallel_size, size
from app.rules.derived.scheduler import max_num_batched_tokens, max_num_seqs
from app.serve_config.serve_config import Abstain, ServeConfig

GIB: Final = 1024**3
UTILIZATION: Final = "gpu_memory_utilization"
# CUDA context, NCCL buffers and captured graphs: seen between 0.6 and 2 GiB.
_FIXED: Final = 1 * GIB


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes on one GPU. `margin` is for activations, logits and what CUDA itself takes.

    `uncounted` are parts of the model without which its weights are a lower bound.
    """

    device: int
    utilization: float
    weights: int
    request_cache: int
    margin: int
    tokens: int
    parameters: int
    uncounted: tuple[str, ...] = ()

    @property
    def allowed(self) -> int:
        """What vLLM may use of the device."""
        return int(self.device * self.utilization)

    @property
    def left_for_cache(self) -> int:
        """What weights leave of that, without a margin."""
        return self.allowed - self.weights

    def as_json(self) -> dict[str, Any]:
        """Render the breakdown, in GiB."""
        return {
            "estimate": True,
            "parameters": self.parameters,
            "device_gib": _gib(self.device),
            "allowed_gib": _gib(self.allowed),
            "weights_gib": _gib(self.weights),
            "margin_gib": _gib(self.margin),
            "cache_gib": _gib(max(0, self.left_for_cache - self.margin)),
            "request_tokens": self.tokens,
            "request_cache_gib": _gib(self.request_cache),
            **({"not_counted": list(self.uncounted)} if self.uncounted else {}),
        }


def _gib(number: int) -> float:
    return round(number / GIB, 2)


@derived
def estimate(config: ServeConfig) -> Estimate:
    """Estimate the memory of each GPU.

    Raises:
        Abstain: the model's config.json or the GPU is not known, or its parameters cannot be
            counted, or weights are kept elsewhere.
    """
    for dest in ("cpu_offload_gb", "kv_cache_memory_bytes"):
        if config[dest]:
            raise Abstain(f"where memory goes with {dest}")
    device = device_memory(config)
    tokens = max_model_len(config)
    counted = parameters(config)
    return Estimate(
        device=device,
        utilization=utilization(config),
        weights=weight_bytes(config),
        request_cache=request_bytes(config, tokens),
        margin=_margin(config),
        tokens=tokens,
        parameters=counted.total,
        uncounted=counted.uncounted,
    )


def utilization(config: ServeConfig) -> float:
    """Give the part of a GPU's memory that the server takes.

    Raises:
        Abstain: the value is no number, and is refused for that.
    """
    share = config[UTILIZATION]
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise Abstain(f"a valid {UTILIZATION}")
    return float(share)


def weight_bytes(config: ServeConfig) -> int:
    """Give the bytes of the weights on each GPU.

    Raises:
        Abstain: as `parameters` and `bytes_per_weight`.
    """
    counted, width = parameters(config), bytes_per_weight(config)
    ranks, stages = size(config, "tensor_parallel_size"), size(config, "pipeline_parallel_size")
    expert_ranks = ranks
    if config["enable_expert_parallel"]:
        expert_ranks = ranks * data_parallel_size(config)
    whole_towers = config["mm_encoder_tp_mode"] == "data"
    return int(
        counted.embedding * width.plain / ranks
        + counted.dense * width.dense / (ranks * stages)
        + counted.experts * width.experts / (expert_ranks * stages)
        + counted.towers * width.plain / (1 if whole_towers else ranks)
    )


def _margin(config: ServeConfig) -> int:
    """Allow for one step's activations, and logits of all sequences in fp32, twice."""
    width = BYTES.get(model_dtype(config).removeprefix("torch."), 2.0)
    activations = max_num_batched_tokens(config) * hidden_size(config) * 8 * width
    logits = 2 * max_num_seqs(config) * vocab_size(config) * 4
    return int(activations + logits / size(config, "tensor_parallel_size")) + _FIXED
