"""Layers that keep a state: kernels, prefix caching and dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.mamba import (
    BACKEND,
    CACHE_MODE,
    SSM_DTYPE,
    cache_mode,
    keeps_states,
    mamba_backend,
    ssm_dtype,
)
from app.rules.derived.model import max_model_len, model_class, text_value
from app.rules.derived.parallel import since
from app.rules.derived.scheduler import enable_chunked_prefill, enable_prefix_caching
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.serve_config.suggest import hint, nearest
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "mamba"
_MODELS: Final = "vllm/model_executor/models/config.py"
_CONFIG: Final = "vllm/config/mamba.py"
_VLLM: Final = "vllm/config/vllm.py"
_SSU: Final = "mamba_ssu_algorithm"
_ROUNDING: Final = "enable_mamba_cache_stochastic_rounding"
_BLOCK: Final = "mamba_block_size"

FALCON: Final[dict[str, Any]] = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mamba_chunk_size": 256,
    "mamba_d_conv": 4,
    "mamba_d_head": 8,
    "mamba_d_ssm": 1024,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 128000,
}
_QWEN: Final[dict[str, Any]] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "torch_dtype": "bfloat16",
    "vocab_size": 248320,
}


@rule(
    id="mamba-backend-unknown",
    title="There are no such kernels for states",
    explanation="`--mamba-backend` takes any text, and vLLM looks the name up once it builds the "
    "configuration.",
    remedy="Use `triton`, `flashinfer` or `cpu`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CONFIG}::_MambaBackendEnumMeta.__getitem__",
    covers=("mamba-backend-unknown", "mamba-backend-enum"),
    bad=(Example("vllm serve m --mamba-backend cuda"),),
    good=(Example("vllm serve m --mamba-backend FlashInfer"), Example("vllm serve m")),
)
def unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up."""
    if not config.given(BACKEND):
        return
    members = config.catalogue.config_classes["MambaConfig"].fields["backend"].type["members"]
    name = mamba_backend(config)
    if name in members:
        return
    known = [member.lower() for member in members]
    names = nearest(name.lower(), known)
    fix = Fix("drop --mamba-backend", (RemoveFlag(BACKEND),), safe=False)
    if names:
        fix = Fix(f"use {names[0]}", (SetFlag(BACKEND, names[0]),), safe=False)
    yield unknown.finding(
        f"--mamba-backend is {config[BACKEND]!r}, and there are {', '.join(known)}{hint(names)}",
        location=config.place(BACKEND),
        fix=fix,
        engine_message=f"Unknown Mamba SSU backend: '{name}'",
    )


@rule(
    id="mamba-ssu-backend",
    title="--mamba-ssu-algorithm needs the FlashInfer kernels",
    explanation="Only FlashInfer has several algorithms for the update of states.",
    remedy="Add `--mamba-backend flashinfer`, or leave the algorithm out.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CONFIG}::MambaConfig.validate_ssu_algorithm",
    covers=("mamba-ssu-needs-flashinfer", "mamba-ssu-backend"),
    bad=(
        Example("vllm serve m --mamba-ssu-algorithm simple"),
        Example("vllm serve m --mamba-ssu-algorithm auto --mamba-backend triton"),
    ),
    good=(
        Example("vllm serve m --mamba-ssu-algorithm simple --mamba-backend flashinfer"),
        Example("vllm serve m --mamba-backend triton"),
    ),
)
def ssu_backend(config: ServeConfig) -> Iterator[Finding]:
    """Compare the kernels."""
    algorithm = config[_SSU]
    if algorithm is None or mamba_backend(config) == "FLASHINFER":
        return
    yield ssu_backend.finding(
        f"--mamba-ssu-algorithm {algorithm} needs --mamba-backend flashinfer, and it is "
        f"{mamba_backend(config).lower()}",
        location=config.place(_SSU),
        fix=Fix("drop --mamba-ssu-algorithm", (RemoveFlag(_SSU),), safe=False),
        engine_message="Mamba SSU algorithm selection is only supported with the FlashInfer",
    )


@rule(
    id="mamba-rounding-dtype",
    title="Stochastic rounding needs states in float16",
    explanation="Rounding happens where a state is written as float16. vLLM refuses other dtypes, "
    "also where the model itself says so and nobody asked.",
    remedy="Add `--mamba-ssm-cache-dtype float16`, or leave the rounding out.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_VLLM}::VllmConfig.__post_init__",
    covers=("mamba-stochastic-dtype",),
    bad=(
        Example(f"vllm serve m --{_ROUNDING.replace('_', '-')}", model_config=FALCON),
        Example(f"vllm serve m --{_ROUNDING.replace('_', '-')} --mamba-ssm-cache-dtype float32"),
    ),
    good=(
        Example(f"vllm serve m --{_ROUNDING.replace('_', '-')} --mamba-ssm-cache-dtype float16"),
        Example("vllm serve m --mamba-ssm-cache-dtype float32"),
    ),
)
def rounding(config: ServeConfig) -> Iterator[Finding]:
    """Compare the dtype."""
    if not config[_ROUNDING]:
        return
    dtype = ssm_dtype(config)
    if dtype != "float16":
        yield rounding.finding(
            f"stochastic rounding needs states in float16, and they are {dtype}",
            location=config.place(_ROUNDING),
            fix=Fix(
                "use --mamba-ssm-cache-dtype float16", (SetFlag(SSM_DTYPE, "float16"),), safe=False
            ),
            engine_message="Stochastic rounding for Mamba cache requires the SSM cache to be "
            "float16",
        )


@rule(
    id="mamba-block-prefix",
    title="--mamba-block-size needs prefix caching",
    explanation="Without prefix caching a state is kept for the whole sequence. vLLM refuses a "
    "block size other than the model's length, also for models without states.",
    remedy="Leave `--mamba-block-size` out, or cache prefixes.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_VLLM}::VllmConfig.validate_mamba_block_size",
    covers=("mamba-block-size-needs-prefix",),
    bad=(
        Example(
            "vllm serve m --mamba-block-size 256 --no-enable-prefix-caching", model_config=DENSE
        ),
        Example(
            "vllm serve m --mamba-block-size 256 --no-enable-prefix-caching", model_config=FALCON
        ),
    ),
    good=(
        Example("vllm serve m --mamba-block-size 256", model_config=FALCON),
        Example(
            "vllm serve m --mamba-block-size 4096 --max-model-len 4096 --no-enable-prefix-caching",
            model_config=FALCON,
        ),
        Example("vllm serve m --no-enable-prefix-caching", model_config=FALCON),
    ),
)
def block(config: ServeConfig) -> Iterator[Finding]:
    """Compare the block with the length where prefixes are not cached."""
    given = config[_BLOCK]
    if not isinstance(given, int) or enable_prefix_caching(config):
        return
    if given != max_model_len(config):
        yield block.finding(
            f"--mamba-block-size {given} needs prefix caching, which is off",
            location=config.place(_BLOCK),
            fix=Fix("drop --mamba-block-size", (RemoveFlag(_BLOCK),), safe=False),
            engine_message="--mamba-block-size can only be set with --enable-prefix-caching",
        )


@rule(
    id="mamba-prefix-chunked",
    title="Caching prefixes of states needs chunked prefill",
    explanation="States are kept at the ends of blocks, so a prompt must be cut there. Models with "
    "states cache prefixes by default if they have attention as well.",
    remedy="Drop `--no-enable-chunked-prefill`, or add `--no-enable-prefix-caching`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_MODELS}::MambaModelConfig.verify_and_update_config",
    covers=("mamba-align-chunked",),
    bad=(
        Example(
            "vllm serve m --enable-prefix-caching --no-enable-chunked-prefill "
            "--max-num-batched-tokens 8192",
            model_config=FALCON,
            versions=">=0.32",
        ),
        Example(
            "vllm serve m --enable-prefix-caching --no-enable-chunked-prefill "
            "--mamba-cache-mode align --max-num-batched-tokens 8192",
            model_config=FALCON,
        ),
    ),
    good=(
        Example("vllm serve m --enable-prefix-caching", model_config=FALCON),
        Example(
            "vllm serve m --no-enable-prefix-caching --no-enable-chunked-prefill "
            "--max-num-batched-tokens 8192",
            model_config=FALCON,
        ),
    ),
)
def chunked(config: ServeConfig) -> Iterator[Finding]:
    """Look for a prompt that cannot be cut."""
    if config["enable_chunked_prefill"] is not False or config["mm_encoder_only"]:
        return
    if not keeps_states(config) or not enable_prefix_caching(config):
        return
    if enable_chunked_prefill(config):
        return
    if since(config, "0.32") or cache_mode(config) == "align":
        dest = "enable_chunked_prefill"
        yield chunked.finding(
            "this model keeps states and caches their prefixes, which needs chunked prefill",
            location=config.place(dest),
            fix=Fix("drop --no-enable-chunked-prefill", (RemoveFlag(dest),), safe=False),
            engine_message="Chunked prefill is required for",
        )


@rule(
    id="mamba-mode-unused",
    title="Without prefix caching states have no prefixes to cache",
    explanation="`--mamba-cache-mode` becomes `none`.",
    remedy="Drop it, or add `--enable-prefix-caching`.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_MODELS}::MambaModelConfig.verify_and_update_config",
    versions=">=0.28,<0.33",
    covers=("mamba-align-without-prefix",),
    bad=(
        Example(
            "vllm serve m --mamba-cache-mode align --no-enable-prefix-caching", model_config=FALCON
        ),
    ),
    good=(
        Example(
            "vllm serve m --mamba-cache-mode align --enable-prefix-caching", model_config=FALCON
        ),
        Example("vllm serve m --no-enable-prefix-caching", model_config=FALCON),
    ),
)
def mode_unused(config: ServeConfig) -> Iterator[Finding]:
    """Compare with what is left of it."""
    asked = config[CACHE_MODE]
    if not isinstance(asked, str) or asked == "none":
        return
    if keeps_states(config) and cache_mode(config) == "none":
        yield mode_unused.finding(
            f"--mamba-cache-mode is {asked}, but vLLM will use none, because prefixes are not "
            "cached",
            location=config.place(CACHE_MODE),
            fix=Fix("drop --mamba-cache-mode", (RemoveFlag(CACHE_MODE),), safe=True),
            evidence={"dest": CACHE_MODE, "asked": asked, "effective": "none"},
        )


@rule(
    id="mamba-align-images",
    title="Caching prefixes of states needs images that can be cut",
    explanation="A prompt is cut at the ends of blocks, which may be in the middle of an image. "
    "With `--disable-chunked-mm-input` the engine stops.",
    remedy="Drop `--disable-chunked-mm-input`, or add `--no-enable-prefix-caching`.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_VLLM}::VllmConfig.validate_block_size",
    covers=("mamba-align-mm-input",),
    bad=(Example("vllm serve m --disable-chunked-mm-input", model_config=FALCON),),
    good=(
        Example(
            "vllm serve m --disable-chunked-mm-input --no-enable-prefix-caching",
            model_config=FALCON,
        ),
        Example("vllm serve m --disable-chunked-mm-input", model_config=DENSE),
    ),
)
def images(config: ServeConfig) -> Iterator[Finding]:
    """Look for both."""
    dest = "disable_chunked_mm_input"
    if not config[dest] or cache_mode(config) != "align":
        return
    yield images.finding(
        "prefixes of states are cached at the ends of blocks, which --disable-chunked-mm-input "
        "rules out; the engine will stop",
        location=config.place(dest),
        fix=Fix("drop --disable-chunked-mm-input", (RemoveFlag(dest),), safe=False),
    )


@rule(
    id="mamba-dtype-of-model",
    title="States are kept in another dtype than the model says",
    explanation="Qwen3.5 says in `mamba_ssm_dtype` in which dtype its states are kept. vLLM takes "
    "what was asked for, and warns.",
    remedy="Leave `--mamba-ssm-cache-dtype` out.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_MODELS}::Qwen3_5ForConditionalGenerationConfig.verify_and_update_config",
    covers=("qwen35-ssm-dtype",),
    bad=(Example("vllm serve m --mamba-ssm-cache-dtype bfloat16", model_config=_QWEN),),
    good=(
        Example("vllm serve m --mamba-ssm-cache-dtype float32", model_config=_QWEN),
        Example("vllm serve m", model_config=_QWEN),
        Example("vllm serve m --mamba-ssm-cache-dtype bfloat16", model_config=FALCON),
    ),
)
def dtype_of_model(config: ServeConfig) -> Iterator[Finding]:
    """Compare with what the model says."""
    asked = config[SSM_DTYPE]
    if not isinstance(asked, str) or asked == "auto":
        return
    if not model_class(config).startswith("Qwen3_5"):
        return
    wanted = text_value(config, "mamba_ssm_dtype")
    if wanted is not None and wanted != asked:
        yield dtype_of_model.finding(
            f"states are kept as {asked}, and the model says {wanted}",
            location=config.place(SSM_DTYPE),
            fix=Fix("leave --mamba-ssm-cache-dtype out", (RemoveFlag(SSM_DTYPE),), safe=False),
        )
