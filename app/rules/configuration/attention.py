"""Attention backends: names, and who may choose them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.attention import (
    BACKEND,
    CONFIG,
    MSA_ALIASES,
    asked_backend,
    config_backend,
    flag_backend,
)
from app.rules.derived.model import architectures
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.serve_config.suggest import hint, nearest
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "attention"
_CREATE: Final = "vllm/engine/arg_utils.py::EngineArgs.create_engine_config"
_MODELS: Final = "vllm/model_executor/models/config.py"
_VERSION: Final = f"{CONFIG}.flash_attn_version"

OCR: Final[dict[str, Any]] = {
    "architectures": ["UnlimitedOCRForCausalLM"],
    "model_type": "unlimited-ocr",
    "language_config": {
        "first_k_dense_replace": 1,
        "hidden_size": 1280,
        "intermediate_size": 6848,
        "kv_lora_rank": None,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 896,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_attention_heads": 10,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 12,
        "num_key_value_heads": 10,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "torch_dtype": "bfloat16",
        "use_mla": False,
        "v_head_dim": 0,
        "vocab_size": 129280,
    },
    "torch_dtype": "bfloat16",
}
_DIFFUSION: Final[dict[str, Any]] = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "model_type": "diffusion_gemma",
    "canvas_length": 256,
    "text_config": {
        "model_type": "diffusion_gemma_text",
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 262144,
        "num_attention_heads": 16,
        "num_hidden_layers": 2,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
        "vocab_size": 262144,
    },
    "torch_dtype": "bfloat16",
}


@rule(
    id="attention-backend-unknown",
    title="The attention backend is not one of this version",
    explanation="`--attention-backend` takes any text, and vLLM looks the name up, in capitals, "
    "once it builds the configuration. `auto` leaves the choice to vLLM.",
    remedy="Take one of the names, or leave the flag out.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/v1/attention/backends/registry.py::_AttentionBackendEnumMeta.__getitem__",
    covers=("attention-backend-unknown",),
    bad=(
        Example("vllm serve m --attention-backend flashattention"),
        Example("vllm serve m --attention-backend XFORMERS"),
    ),
    good=(
        Example("vllm serve m --attention-backend flash_attn"),
        Example("vllm serve m --attention-backend auto"),
    ),
)
def unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up."""
    given = flag_backend(config)
    known = config.catalogue.registries.get("attention_backends") or ()
    if given is None or given == "AUTO" or not known or given in known:
        return
    names = nearest(given, known)
    if names:
        fix = Fix(f"use {names[0]}", (SetFlag(BACKEND, names[0]),), safe=False)
    else:
        fix = Fix("leave the choice to vLLM", (RemoveFlag(BACKEND),), safe=False)
    yield unknown.finding(
        f"{config[BACKEND]!r} is no attention backend of vLLM {config.catalogue.vllm_version}"
        f"{hint(names)}",
        location=config.place(BACKEND),
        fix=fix,
        engine_message=f"Unknown attention backend: '{given}'",
    )


@rule(
    id="attention-backend-twice",
    title="The attention backend is given twice",
    explanation="`--attention-backend` and `backend` of `--attention-config` are the same, and "
    "vLLM refuses to choose, even where both say the same or the flag says `auto`.",
    remedy="Give it once.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CREATE,
    covers=("attention-backend-twice",),
    bad=(
        Example("vllm serve m --attention-backend FLASH_ATTN -ac.backend=FLASHINFER"),
        Example("vllm serve m --attention-backend auto -ac.backend=FLASH_ATTN"),
    ),
    good=(
        Example("vllm serve m --attention-backend FLASH_ATTN -ac.backend=auto"),
        Example("vllm serve m -ac.backend=FLASH_ATTN"),
    ),
)
def twice(config: ServeConfig) -> Iterator[Finding]:
    """Look for both."""
    flag, key = flag_backend(config), config_backend(config)
    if flag is None or key is None:
        return
    dropped = BACKEND if flag == "AUTO" else f"{CONFIG}.backend"
    yield twice.finding(
        f"the attention backend is given by --attention-backend ({config[BACKEND]}) and in "
        f"--attention-config ({key})",
        location=config.place(BACKEND),
        related=tuple(p for p in (config.place(CONFIG),) if p is not None),
        fix=Fix(f"drop {dropped}", (RemoveFlag(dropped),), safe=flag in {key, "AUTO"}),
        engine_message="attention_backend and attention_config.backend are mutually exclusive",
    )


@rule(
    id="attention-msa-alias",
    title="This backend's name only chooses a decode kernel",
    explanation="In `--attention-config`, CUTLASS_MSA and TRITON_MSA set "
    "`minimax_m3_msa_decode_backend` and nothing else: the backend itself is left to vLLM.",
    remedy="Set `minimax_m3_msa_decode_backend`, and a backend if you want one.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/attention.py::AttentionConfig.__post_init__",
    covers=("msa-alias-clears-backend",),
    bad=(Example("vllm serve m -ac.backend=CUTLASS_MSA"),),
    good=(Example("vllm serve m -ac.minimax_m3_msa_decode_backend=cutlass"),),
)
def alias(config: ServeConfig) -> Iterator[Finding]:
    """Look for the names."""
    given = config[f"{CONFIG}.backend"]
    if not isinstance(given, str) or given.upper() not in MSA_ALIASES:
        return
    kernel = MSA_ALIASES[given.upper()]
    dest = f"{CONFIG}.minimax_m3_msa_decode_backend"
    yield alias.finding(
        f"the backend is {given.upper()}, but vLLM will choose one itself and only set "
        f"minimax_m3_msa_decode_backend to {kernel}",
        location=config.place(CONFIG),
        fix=Fix(
            f"set minimax_m3_msa_decode_backend to {kernel}",
            (RemoveFlag(f"{CONFIG}.backend"), SetFlag(dest, kernel)),
            safe=True,
        ),
        evidence={"dest": f"{CONFIG}.backend", "asked": given.upper(), "effective": None},
    )


@rule(
    id="attention-packed-version",
    title="A packed KV cache needs FlashAttention 2",
    explanation="Layers that keep the model's dtype do not work with FlashAttention 3 beside "
    "TurboQuant and UltraQuant caches, so vLLM takes version 2.",
    remedy="Set `flash_attn_version` to 2, or leave it out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CREATE,
    covers=("turboquant-fa2",),
    bad=(Example("vllm serve m --kv-cache-dtype turboquant_4bit_nc -ac.flash_attn_version=3"),),
    good=(
        Example("vllm serve m --kv-cache-dtype turboquant_4bit_nc -ac.flash_attn_version=2"),
        Example("vllm serve m --kv-cache-dtype turboquant_4bit_nc"),
        Example("vllm serve m -ac.flash_attn_version=3"),
    ),
)
def packed(config: ServeConfig) -> Iterator[Finding]:
    """Compare the version with the cache."""
    asked, dtype = config[_VERSION], config["kv_cache_dtype"]
    if not isinstance(asked, int) or asked < 3 or not isinstance(dtype, str):
        return
    if dtype.startswith("turboquant_") or dtype == "ultraquant_4bit":
        yield packed.finding(
            f"flash_attn_version is {asked}, but vLLM will use 2, because of --kv-cache-dtype "
            f"{dtype}",
            location=config.place(_VERSION),
            fix=Fix("set it to 2", (SetFlag(_VERSION, 2),), safe=True),
            evidence={"dest": _VERSION, "asked": asked, "effective": 2},
        )


_OCR_BACKENDS: Final = ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION")


@rule(
    id="attention-backend-of-model",
    title="The model does not go with this attention backend",
    explanation="Unlimited-OCR masks attention by token and has FLASH_ATTN, TRITON_ATTN and "
    "FLEX_ATTENTION only. DiffusionGemma attends in both directions within a batch, which "
    "FlashInfer cannot.",
    remedy="Leave the backend out.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_MODELS}::UnlimitedOCRForCausalLMConfig.verify_and_update_config",
    covers=("unlimited-ocr-backend", "diffusiongemma-flashinfer"),
    bad=(
        Example("vllm serve m --attention-backend FLASHINFER", model_config=OCR),
        Example("vllm serve m --attention-backend FLASHINFER", model_config=_DIFFUSION),
    ),
    good=(
        Example("vllm serve m --attention-backend FLASHINFER", model_config=DENSE),
        Example("vllm serve m", model_config=OCR),
    ),
)
def of_model(config: ServeConfig) -> Iterator[Finding]:
    """Compare the backend with the model's class."""
    asked = asked_backend(config)
    known = config.catalogue.registries.get("attention_backends") or ()
    if asked is None or asked not in known:
        return
    names = architectures(config)
    if "UnlimitedOCRForCausalLM" in names and asked not in _OCR_BACKENDS:
        why = f"Unlimited-OCR has {', '.join(_OCR_BACKENDS)} only"
        message = "Unlimited-OCR: unsupported attention backend"
    elif "DiffusionGemmaForBlockDiffusion" in names and asked == "FLASHINFER":
        why = "DiffusionGemma attends in both directions"
        message = "FlashInfer does not support DiffusionGemma's mixed"
    else:
        return
    dest = f"{CONFIG}.backend" if flag_backend(config) in {None, "AUTO"} else BACKEND
    yield of_model.finding(
        f"the attention backend {asked} does not go with this model: {why}",
        location=config.place(dest),
        fix=Fix("leave the backend to vLLM", (RemoveFlag(dest),), safe=False),
        engine_message=message,
    )


@rule(
    id="attention-ocr-version",
    title="Unlimited-OCR needs FlashAttention 4",
    explanation="Its mask cannot be expressed with older versions, so vLLM takes version 4 with "
    "FLASH_ATTN.",
    remedy="Set `flash_attn_version` to 4, or leave it out.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_MODELS}::UnlimitedOCRForCausalLMConfig.verify_and_update_config",
    covers=("unlimited-ocr-fa-version",),
    bad=(
        Example(
            "vllm serve m --attention-backend FLASH_ATTN -ac.flash_attn_version=3",
            model_config=OCR,
        ),
    ),
    good=(
        Example(
            "vllm serve m --attention-backend FLASH_ATTN -ac.flash_attn_version=4",
            model_config=OCR,
        ),
        Example(
            "vllm serve m --attention-backend FLASH_ATTN -ac.flash_attn_version=3",
            model_config=DENSE,
        ),
    ),
)
def ocr_version(config: ServeConfig) -> Iterator[Finding]:
    """Compare the version."""
    asked = config[_VERSION]
    if not isinstance(asked, int) or asked >= 4 or asked_backend(config) != "FLASH_ATTN":
        return
    if "UnlimitedOCRForCausalLM" in architectures(config):
        yield ocr_version.finding(
            f"flash_attn_version is {asked}, but vLLM will use 4, which Unlimited-OCR needs",
            location=config.place(_VERSION),
            fix=Fix("set it to 4", (SetFlag(_VERSION, 4),), safe=True),
            evidence={"dest": _VERSION, "asked": asked, "effective": 4},
        )
