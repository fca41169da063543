"""What memory may be short of, as far as the model's name tells: a hint, never a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.memory.by_name import named_weights, says_hybrid
from app.memory.estimate import GIB, utilization
from app.rules.configuration.memory import SEQUENCES, fewer_sequences
from app.rules.declaration import Example
from app.rules.derived.cuda_graphs import first_graphs, has_full
from app.rules.derived.hardware import device_memory, machine_of
from app.rules.derived.parallel import PP, TP, data_parallel_size, size
from app.rules.derived.scheduler import batch_defaults
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity

# With these somebody has reckoned with the blocks, or weights are elsewhere.
_RECKONED: Final = ("num_gpu_blocks_override", "kv_cache_memory_bytes", "cpu_offload_gb")
# Blocks of the hybrid models of 7 to 36 billion parameters in lab/memory_models.json take 8 to
# 21 MiB on one GPU (`block_bytes` of `mamba-blocks-below-seqs`); LFM2's 0.2 and Falcon-H1's 67.
_BLOCK: Final = 20 * 1024**2
# Activations and logits of one step, captured graphs, and what CUDA takes.
_STEP: Final = 4 * GIB
# What servers of models of such a size mostly have, and the smaller default of sequences on one
# (A100; 1024 on others).
_USUAL: Final = 80 * GIB
_FEWEST_SEQUENCES: Final = 256


@rule(
    id="mamba-blocks-by-name",
    title="A hybrid model, by its name, may get fewer states than sequences",
    explanation="vLLM ends the start of a model whose layers keep a state (Mamba, a gated delta "
    "net) where its cache has fewer blocks than `--max-num-seqs`, by default 256 or 1024. With "
    "config.json and the GPU that is reckoned (`mamba-blocks-below-seqs`). Without config.json the "
    "name is asked: whether the model is a hybrid, how large it is and how it is "
    "quantised. A GPU that is not given is taken to have 80 GiB and the smaller of the defaults, a "
    "state to take 20 MiB, as in Qwen3.5-35B-A3B.",
    remedy="Set `--max-num-seqs` to what the server needs; or give config.json and the GPU, with "
    "which it can be reckoned.",
    severity=Severity.WARNING,
    area="memory",
    source="vllm/config/compilation.py::CompilationConfig.resolve_cudagraph_mode_and_sizes",
    bad=(
        Example("vllm serve org/hybrid-35b-a3b --max-model-len 131072"),
        Example("vllm serve Qwen/Qwen3.5-35B-A3B", gpu="A100-80GB"),
        Example("vllm serve Qwen/Qwen3.5-35B-A3B --max-num-seqs 512", gpu="H100-80GB"),
    ),
    good=(
        Example("vllm serve org/hybrid-35b-a3b --max-model-len 65536 --max-num-seqs 32"),
        Example("vllm serve Qwen/Qwen3.5-35B-A3B", gpu="H200-141GB"),
        Example("vllm serve Qwen/Qwen3.5-35B-A3B -tp 2"),
        Example("vllm serve Qwen/Qwen3.5-27B", note="988 states fit into 80 GiB"),
        Example("vllm serve Qwen/Qwen3.5-35B-A3B-FP8", gpu="H100-80GB"),
        Example("vllm serve org/hybrid-35b-a3b --enforce-eager"),
        Example("vllm serve Qwen/Qwen3-30B-A3B", gpu="A100-80GB", note="no hybrid"),
    ),
)
def states_by_name(config: ServeConfig) -> Iterator[Finding]:
    """Reckon with the weights that the name tells, and a state of a usual size."""
    if config.model_config is not None or any(config[dest] for dest in _RECKONED):
        return
    hybrid, weights = says_hybrid(config), named_weights(config)
    if hybrid is None or weights is None or machine_of(config).is_cpu:
        return
    if config["enforce_eager"] or not has_full(first_graphs(config)):
        return
    ranks, allowed = _ranks(config), _device(config) * utilization(config)
    held, sequences = weights.bytes / ranks, _sequences(config)
    if held > allowed and _gpu_memory(config) is None:
        raise Abstain("the GPU, which must be larger than most for these weights")
    blocks = max(0, int((allowed - held - _STEP) * ranks / _BLOCK))
    if blocks >= sequences:
        return
    yield states_by_name.finding(
        f"an estimate by the model's name ({hybrid}, {weights.parameters / 1e9:g}e9 parameters): "
        f"weights take {held / GIB:.1f} of the {allowed / GIB:.1f} GiB that vLLM may use of "
        f"{_gpu_named(config)}, and about {blocks} states fit beside them; --max-num-seqs is "
        f"{_asked(config, sequences)}, and vLLM ends if fewer fit",
        location=config.place(SEQUENCES) or config.place("model"),
        fix=fewer_sequences(blocks),
        evidence={
            "estimate": True,
            "name": weights.name,
            "parameters": int(weights.parameters),
            "weights_gib": round(held / GIB, 2),
            "allowed_gib": round(allowed / GIB, 2),
            "blocks": blocks,
            "sequences": sequences,
        },
    )


def _gpu_memory(config: ServeConfig) -> int | None:
    try:
        return device_memory(config)
    except Abstain:
        return None


def _device(config: ServeConfig) -> int:
    return _gpu_memory(config) or _USUAL


def _gpu_named(config: ServeConfig) -> str:
    return "a GPU of 80 GiB (none is given)" if _gpu_memory(config) is None else "the GPU"


def _sequences(config: ServeConfig) -> int:
    """Give the sequences that may run; where the GPU is not known, the smaller default."""
    asked = config[SEQUENCES]
    if isinstance(asked, int) and not isinstance(asked, bool):
        return asked
    return _FEWEST_SEQUENCES if _gpu_memory(config) is None else batch_defaults(config)[1]


def _asked(config: ServeConfig, sequences: int) -> str:
    if config.given(SEQUENCES):
        return str(sequences)
    if _gpu_memory(config) is None:
        return "not given (256 or 1024 then, by the GPU)"
    return f"{sequences}, the default here"


def _ranks(config: ServeConfig) -> int:
    """Give over how many GPUs the weights are shared out.

    Raises:
        Abstain: experts are shared out otherwise than the rest.
    """
    if config["enable_expert_parallel"] and data_parallel_size(config) > 1:
        raise Abstain("how much of the weights are experts")
    return size(config, TP) * size(config, PP)
