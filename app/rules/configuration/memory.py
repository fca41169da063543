"""Whether weights, one request and the states of all fit, as an estimate: never a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.memory.estimate import GIB, Estimate, estimate
from app.memory.pages import Pool, pool_of
from app.rules.declaration import Example
from app.rules.derived.cuda_graphs import graph_mode, has_full
from app.rules.derived.mamba import keeps_states
from app.rules.derived.scheduler import max_num_seqs
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag

_70B: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_H100: Final = "H100-80GB"


@rule(
    id="memory-weights",
    title="The weights alone are more than the GPUs may hold",
    explanation="Parameters are counted from config.json and multiplied by the bytes of the dtype "
    "or the quantisation, then shared out over tensor, pipeline and expert ranks. What vLLM may "
    "use is the device's memory times `--gpu-memory-utilization`. Norms and biases are left out. "
    "So are encoders for images or audio whose shapes are not known: the number is then a lower "
    "bound, and a model that fits by it is not checked.",
    remedy="Use more GPUs (`-tp`), a quantised checkpoint or a larger GPU.",
    severity=Severity.WARNING,
    area="memory",
    source="vllm/v1/worker/gpu_worker.py::Worker.determine_available_memory",
    bad=(Example("vllm serve m", model_config=_70B, gpu=_H100),),
    good=(Example("vllm serve m -tp 4", model_config=_70B, gpu=_H100, note="141 GB on four"),),
)
def weights(config: ServeConfig) -> Iterator[Finding]:
    """Compare the weights with what may be used."""
    found = estimate(config)
    if found.left_for_cache < 0:
        yield weights.finding(
            f"an estimate: the weights of {found.parameters / 1e9:.1f}e9 parameters take "
            f"{found.weights / GIB:.1f} GiB on each GPU, and vLLM may use "
            f"{found.allowed / GIB:.1f} GiB of its {found.device / GIB:.1f}",
            location=config.place("tensor_parallel_size") or config.place("model"),
            evidence=found.as_json(),
        )
    else:
        _must_be_whole(found)


def _must_be_whole(found: Estimate) -> None:
    if found.uncounted:
        raise Abstain(f"the size of {', '.join(found.uncounted)}, which the weights leave out")


@rule(
    id="memory-kv-cache",
    title="One request of full length does not fit into the KV cache",
    explanation="vLLM refuses to start where the cache that is left after the weights cannot hold "
    "one request of `--max-model-len`. Activations and graphs take more than this estimate, which "
    "counts none of them.",
    remedy="Lower `--max-model-len`, raise `-tp` or `--gpu-memory-utilization`, or use "
    "`--kv-cache-dtype fp8`.",
    severity=Severity.WARNING,
    area="memory",
    source="vllm/v1/core/kv_cache_utils.py::check_enough_kv_cache_memory",
    bad=(Example("vllm serve m -tp 2", model_config=_70B, gpu=_H100, note="131,072 tokens"),),
    good=(
        Example("vllm serve m -tp 4", model_config=_70B, gpu=_H100),
        Example("vllm serve m -tp 2 --max-model-len 4096", model_config=_70B, gpu=_H100),
        Example("vllm serve m -tp 2 --max-model-len auto", model_config=_70B, gpu=_H100),
    ),
)
def cache(config: ServeConfig) -> Iterator[Finding]:
    """Compare one request with what the weights leave."""
    if config["max_model_len"] == -1:
        return  # vLLM takes what fits
    found = estimate(config)
    if 0 <= found.left_for_cache < found.request_cache:
        yield cache.finding(
            f"an estimate: the cache of one request of {found.tokens} tokens takes "
            f"{found.request_cache / GIB:.1f} GiB on each GPU, and the weights leave "
            f"{found.left_for_cache / GIB:.1f} GiB; about {_fits(found)} tokens fit at the most",
            location=config.place("max_model_len") or config.place("model"),
            evidence={**found.as_json(), "fits_tokens": _fits(found)},
        )
    else:
        _must_be_whole(found)


def _fits(found: Estimate) -> int:
    return int(found.tokens * found.left_for_cache / found.request_cache)


_HYBRID: Final[dict[str, Any]] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
SEQUENCES: Final = "max_num_seqs"
_OVERRIDE: Final = "num_gpu_blocks_override"
_BYTES: Final = "kv_cache_memory_bytes"


@rule(
    id="mamba-blocks-below-seqs",
    title="The cache holds fewer states than sequences may run",
    explanation="A layer that keeps a state (Mamba, a gated delta net, a short convolution) keeps "
    "one block of the cache for each sequence. vLLM refuses to capture whole steps as CUDA graphs, "
    "and ends, if there are fewer blocks than `--max-num-seqs`, by default 256 or 1024. A block is "
    "as vLLM cuts it; how much memory there is for blocks is an estimate: what weights leave of "
    "`--gpu-memory-utilization`, less a margin.",
    remedy="Lower `--max-num-seqs`, raise `--gpu-memory-utilization` or `-tp`, use a quantised "
    "checkpoint, or do without graphs of whole steps (`-cc.cudagraph_mode=PIECEWISE`).",
    severity=Severity.WARNING,
    area="memory",
    source="vllm/config/compilation.py::CompilationConfig.resolve_cudagraph_mode_and_sizes",
    bad=(
        Example("vllm serve m --max-model-len 131072", model_config=_HYBRID, gpu=_H100),
        Example("vllm serve m --num-gpu-blocks-override 95", model_config=_HYBRID, gpu=_H100),
        Example("vllm serve m -tp 2 --kv-cache-memory-bytes 1G", model_config=_HYBRID, gpu=_H100),
    ),
    good=(
        Example(
            "vllm serve m --max-model-len 65536 --max-num-seqs 32", model_config=_HYBRID, gpu=_H100
        ),
        Example("vllm serve m -tp 4", model_config=_HYBRID, gpu=_H100),
        Example("vllm serve m -tp 2 --kv-cache-memory-bytes 40G", model_config=_HYBRID, gpu=_H100),
        Example("vllm serve m --enforce-eager", model_config=_HYBRID, gpu=_H100),
        Example("vllm serve m -cc.cudagraph_mode=PIECEWISE", model_config=_HYBRID, gpu=_H100),
        Example("vllm serve m -tp 2", model_config=_70B, gpu=_H100, note="no states"),
    ),
)
def states(config: ServeConfig) -> Iterator[Finding]:
    """Compare the blocks with the sequences."""
    if not keeps_states(config) or not has_full(graph_mode(config)):
        return
    sequences, pool = max_num_seqs(config), pool_of(config)
    memory, blocks, evidence = _blocks(config, pool)
    if blocks is None or blocks >= sequences:
        return
    asked = "" if config.given(SEQUENCES) else ", the default here"
    yield states.finding(
        f"{memory} {blocks} blocks for states, and --max-num-seqs is {sequences}{asked}: lower it "
        f"to {blocks} at the most",
        location=config.place(SEQUENCES) or config.place(_OVERRIDE) or config.place("model"),
        fix=fewer_sequences(blocks),
        evidence={
            **evidence,
            "blocks": blocks,
            "block_bytes": pool.bytes_of_block,
            "block_tokens": pool.block,
        },
        engine_message=f"max_num_seqs ({sequences}) exceeds available Mamba cache blocks",
    )


def fewer_sequences(blocks: int) -> Fix | None:
    """Propose as many sequences as have a block for their state; None where there is no block."""
    if not blocks:
        return None
    fits = 1 << blocks.bit_length() - 1
    return Fix(f"use --max-num-seqs {fits}", (SetFlag(SEQUENCES, fits),), safe=False)


def _blocks(config: ServeConfig, pool: Pool) -> tuple[str, int | None, dict[str, Any]]:
    """Give where the blocks come from, and how many; None where another rule speaks first."""
    override, given = config[_OVERRIDE], config[_BYTES]
    if isinstance(override, int):
        return "--num-gpu-blocks-override leaves", override, {}
    if isinstance(given, int):
        return "--kv-cache-memory-bytes holds", pool.blocks(given), {}
    found = estimate(config)
    if found.left_for_cache < found.request_cache:
        return "", None, {}
    left = max(0, found.left_for_cache - found.margin)
    text = f"an estimate: weights and one step leave about {left / GIB:.1f} of "
    text += f"{found.allowed / GIB:.1f} GiB, which hold"
    return text, pool.blocks(left), found.as_json()
