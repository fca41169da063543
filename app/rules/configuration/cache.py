"""The KV cache: sharing, the hybrid manager, block sizes and dtypes.

Source of most: `config/vllm.py::VllmConfig.__post_init__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.memory.layers import layers_of
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.model import text_value, uses_mla
from app.rules.derived.parallel import size
from app.rules.registry import rule
from app.rules.replacement import nearest_or_none
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "cache"
_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_UTILS: Final = "vllm/v1/core/kv_cache_utils.py"
_EAGLE_LIKE: Final = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
_NO_MANAGER: Final = "disable_hybrid_kv_cache_manager"
_CHUNKED: Final = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"
_SHARED: Final = "kv_sharing_fast_prefill"
_DTYPE: Final = "kv_cache_dtype"

_DEEPSEEK: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "max_position_embeddings": 8192,
    "vocab_size": 102400,
    "torch_dtype": "bfloat16",
}
_LLAMA4: Final[dict[str, Any]] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "attention_chunk_size": 8192,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "max_position_embeddings": 131072,
        "vocab_size": 202048,
    },
    "torch_dtype": "bfloat16",
}
_GEMMA3: Final[dict[str, Any]] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "head_dim": 256,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "vocab_size": 262144,
    "torch_dtype": "bfloat16",
}


def _drafts_like_eagle(config: ServeConfig) -> bool:
    """Whether drafts come from the target's hidden states (`SpeculativeConfig.use_eagle`)."""
    speculation = speculation_of(config)
    return speculation is not None and speculation.method in _EAGLE_LIKE


@rule(
    id="cache-kv-sharing-eagle",
    title="Fast prefill for shared KV layers does not go with EAGLE-like drafting",
    explanation="Drafts are made from the target's logits and hidden states of every token; fast "
    "prefill skips layers for prompt tokens and leaves them wrong. vLLM refuses.",
    remedy="Drop `--kv-sharing-fast-prefill`, or the speculation.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    covers=("kv-sharing-eagle",),
    bad=(
        Example(
            "vllm serve m --kv-sharing-fast-prefill --speculative-config "
            """'{"method": "mtp", "num_speculative_tokens": 1}'""",
            model_config={
                **_DEEPSEEK,
                "architectures": ["DeepseekV3ForCausalLM"],
                "model_type": "deepseek_v3",
                "num_nextn_predict_layers": 1,
            },
        ),
    ),
    good=(
        Example("vllm serve m --kv-sharing-fast-prefill", model_config=DENSE),
        Example(
            "vllm serve m --kv-sharing-fast-prefill --speculative-config "
            """'{"method": "ngram", "num_speculative_tokens": 1}'""",
            model_config=DENSE,
        ),
    ),
)
def sharing_with_drafts(config: ServeConfig) -> Iterator[Finding]:
    """Compare the method with those that read hidden states."""
    if config[_SHARED] and _drafts_like_eagle(config):
        yield sharing_with_drafts.finding(
            "--kv-sharing-fast-prefill leaves the hidden states of prompts wrong, and this "
            "speculation drafts from them",
            location=config.place(_SHARED),
            fix=Fix("drop --kv-sharing-fast-prefill", (RemoveFlag(_SHARED),), safe=False),
            engine_message="Fast prefill optimization for KV sharing is not compatible with EAGLE",
        )


@rule(
    id="cache-kv-sharing-prefill",
    title="Fast prefill for shared KV layers makes prompt logprobs wrong",
    explanation="It is right only for models whose code provides for it, and it gives wrong "
    "`prompt_logprobs` with all of them.",
    remedy="Use it only where nobody asks for `prompt_logprobs`, and the model supports it.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    covers=("kv-sharing-warning",),
    bad=(Example("vllm serve m --kv-sharing-fast-prefill"),),
    good=(Example("vllm serve m"),),
)
def sharing(config: ServeConfig) -> Iterator[Finding]:
    """Say what it costs."""
    if config[_SHARED]:
        yield sharing.finding(
            "with --kv-sharing-fast-prefill prompt_logprobs are wrong, and models without support "
            "for it answer wrongly",
            location=config.place(_SHARED),
        )


def _manager_cannot(config: ServeConfig) -> str | None:
    """Say why the hybrid KV cache manager cannot be used; None if it can."""
    if text_value(config, "attention_chunk_size") is None:
        return None
    if _drafts_like_eagle(config):
        return "chunked local attention with EAGLE-like drafting"
    variable = config.variable(_CHUNKED)
    if variable is not None and variable.value.strip() == "0":
        return f"chunked local attention with {_CHUNKED}=0"
    return None


@rule(
    id="cache-hybrid-manager-forced",
    title="The hybrid KV cache manager is asked for where it cannot be used",
    explanation="`--no-disable-hybrid-kv-cache-manager` insists on it. Models with chunked local "
    "attention cannot have it together with EAGLE-like drafting, nor where the environment "
    "forbids it.",
    remedy="Leave the flag out: vLLM then decides.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    covers=("hma-forced-unsupported",),
    bad=(
        Example(
            f"{_CHUNKED}=0 vllm serve m --no-disable-hybrid-kv-cache-manager",
            model_config=_LLAMA4,
        ),
    ),
    good=(
        Example("vllm serve m --no-disable-hybrid-kv-cache-manager", model_config=_LLAMA4),
        Example(f"{_CHUNKED}=0 vllm serve m", model_config=_LLAMA4),
        Example(
            f"{_CHUNKED}=0 vllm serve m --no-disable-hybrid-kv-cache-manager", model_config=DENSE
        ),
    ),
)
def forced_manager(config: ServeConfig) -> Iterator[Finding]:
    """Compare what is insisted on with what is possible."""
    if config[_NO_MANAGER] is not False or not config.given(_NO_MANAGER):
        return
    why = _manager_cannot(config)
    if why is not None:
        yield forced_manager.finding(
            f"the hybrid KV cache manager is insisted on, and {why} rules it out",
            location=config.place(_NO_MANAGER),
            fix=Fix(f"leave {_NO_MANAGER} out", (RemoveFlag(_NO_MANAGER),), safe=False),
            engine_message="Hybrid KV cache manager was explicitly enabled but is not supported in "
            "this configuration.",
        )


@rule(
    id="cache-hybrid-manager-off",
    title="vLLM turns the hybrid KV cache manager off",
    explanation="Layers with local attention then keep the cache of every token, as full ones do: "
    "more memory for the same number of requests.",
    remedy=f"Drop `{_CHUNKED}=0`, or the drafting, if memory is short.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    covers=("hma-chunked-local-off", "hma-chunked-eagle-off"),
    bad=(Example(f"{_CHUNKED}=0 vllm serve m", model_config=_LLAMA4),),
    good=(Example("vllm serve m", model_config=_LLAMA4),),
)
def manager_off(config: ServeConfig) -> Iterator[Finding]:
    """Tell what is silently changed."""
    if config[_NO_MANAGER] is not None or (
        config.variable(_CHUNKED) is None and config["speculative_config"] is None
    ):
        return
    why = _manager_cannot(config)
    if why is not None:
        variable = config.variable(_CHUNKED)
        yield manager_off.finding(
            f"{why} turns the hybrid KV cache manager off",
            location=None if variable is None else variable.location,
            evidence={"dest": _NO_MANAGER, "asked": None, "effective": True},
        )


@rule(
    id="cache-hybrid-manager-wanted",
    title="Without the hybrid manager local layers keep the cache of every token",
    explanation="The model has layers that see only a window. With "
    "`--disable-hybrid-kv-cache-manager` their cache is as long as that of full layers.",
    remedy="Drop `--disable-hybrid-kv-cache-manager`.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_UTILS}::unify_hybrid_kv_cache_specs",
    covers=("kv-hybrid-disabled",),
    bad=(Example("vllm serve m --disable-hybrid-kv-cache-manager", model_config=_GEMMA3),),
    good=(
        Example("vllm serve m --disable-hybrid-kv-cache-manager", model_config=DENSE),
        Example("vllm serve m", model_config=_GEMMA3),
    ),
)
def manager_wanted(config: ServeConfig) -> Iterator[Finding]:
    """Look for layers of both kinds."""
    if config[_NO_MANAGER] is not True:
        return
    layers = layers_of(config)
    if layers.local and layers.full:
        yield manager_wanted.finding(
            f"{layers.local} of {layers.total} layers see only a window, and without the hybrid "
            "manager keep every token",
            location=config.place(_NO_MANAGER),
        )


_DCP: Final = "decode_context_parallel_size"
_OLD_INTERLEAVE: Final = "dcp_kv_cache_interleave_size"
_INTERLEAVE: Final = "cp_kv_cache_interleave_size"


@rule(
    id="cache-interleave-replaced",
    title="--dcp-kv-cache-interleave-size replaces --cp-kv-cache-interleave-size",
    explanation="The older flag wins where both are given and it is above 1.",
    remedy="Give `--cp-kv-cache-interleave-size` alone.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.adjust_dcp_kv_cache_interleave_size",
    covers=("dcp-interleave-alias",),
    bad=(
        Example(
            "vllm serve m -tp 2 -dcp 2 --dcp-kv-cache-interleave-size 4 "
            "--cp-kv-cache-interleave-size 8"
        ),
    ),
    good=(
        Example("vllm serve m -tp 2 -dcp 2 --cp-kv-cache-interleave-size 8"),
        Example("vllm serve m --dcp-kv-cache-interleave-size 4"),
    ),
)
def interleave_replaced(config: ServeConfig) -> Iterator[Finding]:
    """Compare both sizes."""
    old, new = config[_OLD_INTERLEAVE], config[_INTERLEAVE]
    if size(config, _DCP) > 1 and isinstance(old, int) and old > 1 and old != new:
        yield interleave_replaced.finding(
            f"the interleave size becomes {old}, from --dcp-kv-cache-interleave-size, instead of "
            f"{new}",
            location=config.place(_OLD_INTERLEAVE),
            evidence={"dest": _INTERLEAVE, "asked": new, "effective": old},
        )


@rule(
    id="cache-interleave-block",
    title="Blocks are no multiple of the interleave size",
    explanation="With decode context parallelism tokens go round the ranks in pieces of the "
    "interleave size, and a block must hold a whole number of them. vLLM asserts it once the "
    "workers have settled the block size.",
    remedy="Give a `--block-size` that is a multiple of the interleave size.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.validate_block_size",
    covers=("block-size-vs-interleave",),
    bad=(Example("vllm serve m -tp 2 -dcp 2 --block-size 16 --cp-kv-cache-interleave-size 24"),),
    good=(Example("vllm serve m -tp 2 -dcp 2 --block-size 32 --cp-kv-cache-interleave-size 16"),),
)
def interleave_block(config: ServeConfig) -> Iterator[Finding]:
    """Compare the block that was asked for."""
    block = config["block_size"]
    if size(config, _DCP) <= 1 or not isinstance(block, int) or block < 1:
        return
    if config["kv_transfer_config.kv_connector"] is not None:
        return  # with NIXL each worker takes the block size for it
    old, new = config[_OLD_INTERLEAVE], config[_INTERLEAVE]
    interleave = old if isinstance(old, int) and old > 1 else new
    if isinstance(interleave, int) and interleave > 0 and block % interleave:
        yield interleave_block.finding(
            f"a block of {block} tokens holds no whole number of pieces of {interleave}; the "
            "workers will stop",
            location=config.place("block_size"),
            related=tuple(p for p in (config.place(_INTERLEAVE),) if p is not None),
        )


@rule(
    id="cache-dtype-unknown",
    title="This vLLM has no such type of KV cache",
    explanation="From 0.33 on `--kv-cache-dtype` takes any word, since a platform may register "
    "types of its own, and the configuration check refuses what is neither vLLM's nor registered. "
    "None of vLLM's own platforms registers any.",
    remedy="Use a type that the message lists.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/cache.py::CacheConfig._validate_cache_dtype",
    versions=">=0.33",
    bad=(
        Example("vllm serve m --kv-cache-dtype fp9"),
        Example("vllm serve m --kv-cache-dtype FP8"),
        Example("vllm serve m --kv-cache-dtype int8", model_config=DENSE),
    ),
    good=(
        Example("vllm serve m --kv-cache-dtype fp8"),
        Example("vllm serve m --kv-cache-dtype octave_k3v4"),
        Example("vllm serve m"),
    ),
)
def dtype_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up among those that the option's help lists."""
    used, known = config[_DTYPE], config.catalogue.by_dest[_DTYPE].suggested
    if not isinstance(used, str) or not known or used in known:
        return
    yield dtype_unknown.finding(
        f"--kv-cache-dtype must be one of {', '.join(known)}, not {used!r}",
        location=config.place(_DTYPE),
        fix=nearest_or_none(_DTYPE, used, known),
        engine_message=f"Invalid kv_cache_dtype: {used!r}",
    )


@rule(
    id="cache-nvfp4-mla",
    title="An NVFP4 KV cache does not go with MLA",
    explanation="The NVFP4 layout packs keys and values of heads; multi-head latent attention "
    "caches one latent vector instead.",
    remedy="Take another `--kv-cache-dtype`, such as `fp8`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.validate_nvfp4_kv_cache_with_mla",
    covers=("nvfp4-kv-mla",),
    bad=(Example("vllm serve m --kv-cache-dtype nvfp4", model_config=_DEEPSEEK),),
    good=(
        Example("vllm serve m --kv-cache-dtype fp8", model_config=_DEEPSEEK),
        Example("vllm serve m", model_config=_DEEPSEEK),
    ),
)
def nvfp4(config: ServeConfig) -> Iterator[Finding]:
    """Look for the dtype with a latent cache."""
    dtype = config[_DTYPE]
    if not isinstance(dtype, str) or not dtype.startswith("nvfp4") or dtype.endswith("_ds_mla"):
        return
    if uses_mla(config):
        yield nvfp4.finding(
            f"--kv-cache-dtype {dtype} does not go with a model that runs MLA",
            location=config.place(_DTYPE),
            fix=Fix("use --kv-cache-dtype fp8", (SetFlag(_DTYPE, "fp8"),), safe=False),
            engine_message="nvfp4 KV cache is not supported with MLA",
        )


@rule(
    id="cache-packed-skip-layers",
    title="vLLM leaves the first and last layers out of the packed KV cache",
    explanation="TurboQuant and UltraQuant caches keep boundary layers at the model's dtype; they "
    "are added to `--kv-cache-dtype-skip-layers`.",
    remedy="Count on a cache that is a little larger.",
    severity=Severity.INFO,
    area=AREA,
    source="vllm/engine/arg_utils.py::EngineArgs.create_engine_config",
    versions=">=0.28",
    covers=("turboquant-skip-layers",),
    bad=(Example("vllm serve m --kv-cache-dtype turboquant_4bit_nc"),),
    good=(Example("vllm serve m --kv-cache-dtype fp8"),),
)
def packed(config: ServeConfig) -> Iterator[Finding]:
    """Look for a packed format."""
    dtype = config[_DTYPE]
    if isinstance(dtype, str) and (dtype.startswith("turboquant_") or dtype == "ultraquant_4bit"):
        yield packed.finding(
            f"with --kv-cache-dtype {dtype} the first and last layers keep the model's dtype",
            location=config.place(_DTYPE),
        )
