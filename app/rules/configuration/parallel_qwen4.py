"""What Qwen4Exp does not do in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import model_class, text_value
from app.rules.derived.parallel import PP, microbatches, since, size, splits_sequence_in_experts
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_CLASSES: Final = frozenset({"Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"})
_SOURCE: Final = (
    "vllm/model_executor/models/config.py::"
    "Qwen4ExpForConditionalGenerationConfig.verify_and_update_config"
)
_WITHOUT_PP: Final = Fix("drop pipeline parallelism", (RemoveFlag(PP),), safe=False)
_CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen4ExpForCausalLM"],
    "model_type": "qwen4_exp_text",
    "eos_token_id": 248044,
    "hidden_size": 2048,
    "max_position_embeddings": 32768,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
    "vocab_size": 248320,
}
_EMBEDDED: Final[dict[str, Any]] = {**_CONFIG, "ple_layer_ids": [1, 2], "ple_embed_dim": 256}


def _is_qwen4(config: ServeConfig) -> bool:
    return model_class(config) in _CLASSES


@rule(
    id="parallel-qwen4-pipeline",
    title="Qwen4Exp has no pipeline stages here",
    explanation="Its n-gram layer embeddings need the token ids, which only the first stage has. "
    "From 0.32 on experts that split the sequence (expert, tensor and data parallelism together) "
    "exclude stages too.",
    remedy="Use tensor parallelism instead of `--pipeline-parallel-size`.",
    severity=Severity.ERROR,
    area="parallel",
    source=_SOURCE,
    versions=">=0.29",
    bad=(Example("vllm serve m -pp 2", model_config=_EMBEDDED),),
    good=(Example("vllm serve m -tp 2", model_config=_EMBEDDED),),
    covers=("qwen4exp-ple-pp", "qwen4exp-sp-pp"),
)
def pipeline(config: ServeConfig) -> Iterator[Finding]:
    """Ask for stages, then for what excludes them."""
    if size(config, PP) == 1 or not _is_qwen4(config):
        return
    machine = machine_of(config)
    splits = machine.is_cuda_alike if since(config, "0.33") else machine.is_cuda
    if since(config, "0.32") and splits and splits_sequence_in_experts(config):
        message, engine = "experts that split the sequence", "Qwen4Exp MoE SP requires PP=1"
    elif text_value(config, "ple_layer_ids"):
        message = "n-gram layer embeddings"
        engine = "Qwen4Exp N-gram PLE embedding requires pipeline_parallel_size=1"
    else:
        return
    yield pipeline.finding(
        f"--pipeline-parallel-size {size(config, PP)} does not go with the {message} of Qwen4Exp",
        location=config.place(PP),
        fix=_WITHOUT_PP,
        engine_message=engine,
    )


@rule(
    id="moe-qwen4-microbatches",
    title="Qwen4Exp does not run in microbatches",
    explanation="Its layer embeddings and its sparse attention exclude `--enable-dbo` and "
    "`--ubatch-size` above 1.",
    remedy="Drop the option.",
    severity=Severity.ERROR,
    area="moe",
    source=_SOURCE,
    versions=">=0.29",
    bad=(
        Example(
            "vllm serve m --enable-dbo --all2all-backend deepep_low_latency",
            model_config=_EMBEDDED,
        ),
    ),
    good=(Example("vllm serve m", model_config=_EMBEDDED),),
    covers=("qwen4exp-dbo",),
)
def in_microbatches(config: ServeConfig) -> Iterator[Finding]:
    """Ask for microbatches, then for what excludes them."""
    if microbatches(config) < 2 or not _is_qwen4(config):
        return
    embeds = bool(text_value(config, "ple_layer_ids"))
    if not embeds and text_value(config, "indexer_n_heads") is None:
        return
    dest = "enable_dbo" if config["enable_dbo"] else "ubatch_size"
    yield in_microbatches.finding(
        f"--{dest.replace('_', '-')} does not go with the "
        f"{'layer embeddings' if embeds else 'sparse attention'} of Qwen4Exp",
        location=config.place(dest),
        fix=Fix(
            "run without microbatches",
            (RemoveFlag("enable_dbo"), RemoveFlag("ubatch_size")),
            safe=False,
        ),
        engine_message="Qwen4Exp PLE/QSA does not support dual-batch overlap or microbatching",
    )
