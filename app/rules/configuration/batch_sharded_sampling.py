"""Sampling sharded over the tensor-parallel ranks (`--enable-batch-sharded-sampling`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.sampling_mask import MASK, wants_mask
from app.rules.declaration import Example
from app.rules.facts import world_size
from app.rules.registry import rule
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_DEST: Final = "enable_batch_sharded_sampling"
_MASKED: Final = (
    "vllm serve m -tp 2 --enable-batch-sharded-sampling --return-sampling-mask "
    "--logprobs-mode processed_logprobs"
)
_ADAPTIVE: Final = (
    "vllm serve m -tp 2 --enable-batch-sharded-sampling --speculative-config "
    """'{"method": "mtp", "num_speculative_tokens": 1, "enable_adaptive_verification": true}'"""
)
_WITHOUT: Final = Fix("drop --enable-batch-sharded-sampling", (RemoveFlag(_DEST),), safe=False)


@rule(
    id="batch-sharded-sampling-blocked",
    title="Batch-sharded sampling is not possible here",
    explanation="Each tensor-parallel rank samples a share of the batch and the results are "
    "gathered. That needs at least two ranks, at least as many sequences as ranks and a bounded "
    "number of logprobs; from 0.30 vLLM also refuses it together with sampling masks, which the "
    "gather does not carry, and up to 0.32 with adaptive verification.",
    remedy="Drop `--enable-batch-sharded-sampling`, or what blocks it.",
    severity=Severity.ERROR,
    area="batch-sharded-sampling",
    source="vllm/config/vllm.py::VllmConfig._validate_batch_sharded_sampling",
    versions=">=0.29",
    covers=("batch-sharded-sampling",),
    bad=(
        Example("vllm serve m --enable-batch-sharded-sampling", note="one rank"),
        Example("vllm serve m -tp 4 --max-num-seqs 2 --enable-batch-sharded-sampling"),
        Example("vllm serve m -tp 2 --max-logprobs -1 --enable-batch-sharded-sampling"),
        Example(_MASKED, versions=">=0.30"),
        Example(_ADAPTIVE, versions="<0.33"),
    ),
    good=(
        Example("vllm serve m -tp 2 --enable-batch-sharded-sampling"),
        Example("vllm serve m -tp 4 --max-num-seqs 4 --enable-batch-sharded-sampling"),
        Example(_ADAPTIVE, versions=">=0.33"),
        Example("vllm serve m --return-sampling-mask"),
    ),
)
def blocked(config: ServeConfig) -> Iterator[Finding]:
    """Collect what blocks it, as vLLM does."""
    if not config[_DEST]:
        return
    reasons = tuple(_blockers(config))
    if reasons:
        yield blocked.finding(
            f"--enable-batch-sharded-sampling is not possible: {'; '.join(reasons)}",
            location=config.place(_DEST),
            fix=_WITHOUT,
            engine_message=config.catalogue.engine_message(
                "batch_sharded_blocked", blockers="; ".join(reasons)
            ),
        )


def _blockers(config: ServeConfig) -> Iterator[str]:
    ranks = world_size(config, "tensor_parallel_size")
    sequences, logprobs = config["max_num_seqs"], config["max_logprobs"]
    speculation = speculation_of(config)
    adaptive = speculation is not None and speculation.value("enable_adaptive_verification")
    present = {
        "tensor_parallel_size": ranks <= 1,
        "max_num_seqs": ranks > 1 and isinstance(sequences, int) and sequences < ranks,
        "max_logprobs": isinstance(logprobs, int) and logprobs < 0,
        "sampling_mask": wants_mask(config),
        "adaptive_verification": bool(adaptive),
    }
    for name, is_present in present.items():
        text = config.catalogue.engine_message(
            f"batch_sharded_{name}", max_num_seqs=sequences, tp_size=ranks
        )
        if is_present and text is not None:
            yield text


@rule(
    id="sampling-mask-lost-by-batch-sharding",
    title="Batch-sharded sampling loses the sampling masks",
    explanation="0.29 starts with both, answers 200, and every `sampling_mask` is null: the "
    "gather of the sharded results does not carry masks. 0.30 refuses the combination.",
    remedy="Drop `--enable-batch-sharded-sampling`.",
    severity=Severity.WARNING,
    area="sampling-mask",
    source="vllm/v1/worker/gpu/sample/batch_shard.py::gather_sampler_output",
    versions=">=0.29,<0.30",
    bad=(Example(_MASKED),),
    good=(
        Example(_MASKED.replace("--enable-batch-sharded-sampling ", "")),
        Example(_MASKED.replace("-tp 2 ", ""), note="one rank: refused, not lost"),
    ),
)
def masks_lost(config: ServeConfig) -> Iterator[Finding]:
    """Tell that no mask will come."""
    if config[_DEST] and wants_mask(config) and world_size(config, "tensor_parallel_size") > 1:
        mask = config.place(MASK)
        yield masks_lost.finding(
            f"vLLM {config.catalogue.vllm_version} starts, but with "
            "--enable-batch-sharded-sampling every sampling_mask is null",
            location=config.place(_DEST),
            related=() if mask is None else (mask,),
            fix=_WITHOUT,
        )
