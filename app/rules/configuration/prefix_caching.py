"""Prefix caching: which models have it, in which units, and hashes that processes agree on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.memory.layers import layers_of
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.model import is_pooling
from app.rules.derived.parallel import size
from app.rules.derived.scheduler import enable_prefix_caching, prefix_caching_default
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetEnvironment

AREA: Final = "cache"
_UTILS: Final = "vllm/v1/core/kv_cache_utils.py"
_DCP: Final = "decode_context_parallel_size"
_BERT: Final[dict[str, Any]] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
}


@rule(
    id="cache-prefix-pooling",
    title="Prefix caching is not supported for this pooling model",
    explanation="The model attends to tokens on both sides, so that a prefix has no cache of its "
    "own. vLLM warns that the engine may crash or answer wrongly.",
    remedy="Drop `--enable-prefix-caching`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/engine/arg_utils.py::EngineArgs."
    "_set_default_chunked_prefill_and_prefix_caching_args",
    covers=("prefix-caching-on-pooling",),
    bad=(Example("vllm serve m --enable-prefix-caching", model_config=_BERT),),
    good=(
        Example("vllm serve m", model_config=_BERT),
        Example("vllm serve m --enable-prefix-caching", model_config=DENSE),
    ),
)
def prefix_on_pooling(config: ServeConfig) -> Iterator[Finding]:
    """Compare with vLLM's own choice."""
    if config["enable_prefix_caching"] is not True or not is_pooling(config):
        return
    if not prefix_caching_default(config):
        yield prefix_on_pooling.finding(
            "--enable-prefix-caching is not supported for this pooling model",
            location=config.place("enable_prefix_caching"),
            fix=Fix(
                "drop --enable-prefix-caching", (RemoveFlag("enable_prefix_caching"),), safe=False
            ),
        )


@rule(
    id="cache-prefix-unit",
    title="--prefix-match-unit is another length than the block",
    explanation="A model with one kind of attention caches whole blocks, and a prefix matches in "
    "units of blocks. Another `--prefix-match-unit` is refused once the cache is laid out.",
    remedy="Leave `--prefix-match-unit` out.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_UTILS}::resolve_kv_cache_block_sizes",
    versions=">=0.32",
    covers=("prefix-match-unit-single",),
    bad=(Example("vllm serve m --prefix-match-unit 8 --block-size 16", model_config=DENSE),),
    good=(
        Example("vllm serve m --prefix-match-unit 16 --block-size 16", model_config=DENSE),
        Example("vllm serve m --block-size 16", model_config=DENSE),
    ),
)
def prefix_unit(config: ServeConfig) -> Iterator[Finding]:
    """Compare both lengths where there is one kind of layer."""
    unit, block = config["prefix_match_unit"], config["block_size"]
    if not isinstance(unit, int) or not isinstance(block, int):
        return
    layers = layers_of(config)
    whole = block * size(config, _DCP)
    if layers.local or layers.state or unit == whole or not enable_prefix_caching(config):
        return
    yield prefix_unit.finding(
        f"--prefix-match-unit {unit} is not the block of {whole} tokens, and this model has one "
        "kind of cache; the engine will stop",
        location=config.place("prefix_match_unit"),
        fix=Fix("drop --prefix-match-unit", (RemoveFlag("prefix_match_unit"),), safe=False),
    )


@rule(
    id="cache-hash-seed",
    title="Prefix hashes differ between processes",
    explanation="The xxhash algorithms are seeded from PYTHONHASHSEED, and at random without it. "
    "Processes that share prefixes (KV transfer, offloading, KV events) then never agree.",
    remedy="Set `PYTHONHASHSEED` to the same number everywhere, or use `sha256`.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_UTILS}::init_none_hash",
    versions=">=0.29",
    covers=("xxhash-seed",),
    bad=(Example("vllm serve m --prefix-caching-hash-algo xxhash"),),
    good=(
        Example("PYTHONHASHSEED=0 vllm serve m --prefix-caching-hash-algo xxhash"),
        Example("vllm serve m --prefix-caching-hash-algo sha256"),
    ),
)
def hash_seed(config: ServeConfig) -> Iterator[Finding]:
    """Look for the algorithm without a seed."""
    algorithm = config["prefix_caching_hash_algo"]
    if not isinstance(algorithm, str) or not algorithm.startswith("xxhash"):
        return
    if config.variable("PYTHONHASHSEED") is None:
        yield hash_seed.finding(
            f"--prefix-caching-hash-algo {algorithm} without PYTHONHASHSEED: each process hashes "
            "prefixes differently",
            location=config.place("prefix_caching_hash_algo"),
            fix=Fix("set PYTHONHASHSEED=0", (SetEnvironment("PYTHONHASHSEED", "0"),), safe=True),
        )
