"""`--quantization-config`, and the dtype that a quantised model computes in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.configuration.parallel_models import DENSE, LATENT
from app.rules.configuration.quantization import (
    AREA,
    DEST,
    checkpoint_method,
    is_newer_composition,
)
from app.rules.declaration import Example
from app.rules.derived.model import hf_value, requested_quantization
from app.rules.derived.model_types import quantization_override
from app.rules.derived.parallel import since
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_CONFIG: Final = "quantization_config"
_CLASS: Final = "vllm/config/quantization.py::QuantizationConfigArgs"
_MOE_ONLY: Final = frozenset({"int8_per_channel_weight_only", "nvfp4_per_token"})
_KINDS: Final = ("linear", "moe", "targets")
# What Python's `re` and the `regex` package that vLLM uses refuse alike.
_BROKEN: Final = ("missing ), unterminated", "unterminated character set", "unbalanced parenthesis")
_WITHOUT: Final = Fix("drop --quantization-config", (RemoveFlag(_CONFIG),), safe=False)
# Methods that compute in half precision only, as the lab saw; compressed-tensors takes float32.
_HALF_ONLY: Final = frozenset(
    {"awq", "auto_awq", "gptq", "auto_gptq", "fp8", "experts_int8"}
    | {"modelopt", "modelopt_fp4", "modelopt_mixed"}
)
NVFP4: Final[dict[str, Any]] = {
    **DENSE,
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "producer": {"name": "modelopt", "version": "0.31"},
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], "group_size": 16}
        | {"kv_cache_quant_algo": None},
    },
}
# What composes with settings that are laid over it; the lab tried each.
_COMPOSED: Final = frozenset({"experts_int8", "fp_quant", "gpt_oss_mxfp4", "deepseek_v4_fp8"})
GPT_OSS: Final[dict[str, Any]] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        "quant_method": "mxfp4",
    },
    "vocab_size": 201088,
}


@rule(
    id="quantization-config-shape",
    title="--quantization-config says something that it cannot",
    explanation="`targets` excludes `linear` and `moe`; its keys that begin with `re:` are regular "
    "expressions. Some shorthands are for experts only and cannot be given for `linear`.",
    remedy="Correct the key that the message names.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_targets_exclusivity",
    bad=(
        Example("vllm serve m --quantization-config.linear int8_per_channel_weight_only"),
        Example(
            """vllm serve m --quantization-config '{"targets": {"re:(": "mxfp8"}}'""",
            versions=">=0.30",
        ),
        Example(
            """vllm serve m --quantization-config '{"targets": {"a": "mxfp8"}, """
            """"linear": "mxfp8"}'""",
            versions=">=0.30",
        ),
    ),
    good=(
        Example("vllm serve m --quantization-config.moe int8_per_channel_weight_only"),
        Example(
            """vllm serve m --quantization-config '{"targets": {"re:.*mlp.*": "mxfp8"}}'""",
            versions=">=0.30",
        ),
    ),
    covers=(
        "quant-config-shorthand-empty",
        "quant-config-target-regex",
        "quant-config-targets-exclusive",
    ),
)
def shape(config: ServeConfig) -> Iterator[Finding]:
    """Read the settings as the class does."""
    if not isinstance(config[_CONFIG], Mapping):
        return
    for message, engine in _problems(config):
        yield shape.finding(
            f"--quantization-config: {message}",
            location=config.place(_CONFIG),
            fix=_WITHOUT,
            engine_message=engine,
        )


def _problems(config: ServeConfig) -> Iterator[tuple[str, str]]:
    linear, targets = config[f"{_CONFIG}.linear"], config[f"{_CONFIG}.targets"]
    if isinstance(linear, str) and linear in _MOE_ONLY:
        yield (
            f"{linear} is for experts and cannot be given for linear",
            f"online shorthand {linear!r} does not define a linear spec",
        )
    if not isinstance(targets, Mapping):
        return
    for pattern in targets:
        problem = _regex_problem(pattern[3:]) if str(pattern).startswith("re:") else None
        if problem is not None:
            yield f"{pattern} {problem}", f"targets key {pattern} is not a valid regex"
    if linear is not None or config[f"{_CONFIG}.moe"] is not None:
        yield (
            "targets excludes linear and moe",
            "quantization_config.targets is mutually exclusive with quantization_config.linear/moe",
        )


def _regex_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        if error.msg.startswith(_BROKEN):
            return f"is no regular expression ({error.msg})"
    return None


@rule(
    id="quantization-config-empty",
    title="--quantization-config says nothing to quantise",
    explanation="Settings for quantising while loading need `linear`, `moe` or `targets`. vLLM "
    "refuses others with `--quantization online`, and from 0.30 on where they are laid over a "
    "checkpoint that is quantised.",
    remedy="Add one of the keys, or drop `--quantization-config`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/layers/quantization/online/base.py::OnlineQuantizationConfig."
    "__init__",
    bad=(
        Example(
            "vllm serve m --quantization online --quantization-config '{}'", model_config=DENSE
        ),
        Example(
            """vllm serve m --quantization-config '{"ignore": ["lm_head"]}'""",
            model_config=LATENT,
            versions=">=0.30",
        ),
        Example("vllm serve m --quantization-config '{}'", model_config=NVFP4, versions=">=0.30"),
        Example("vllm serve m --quantization-config '{}'", model_config=GPT_OSS, versions=">=0.30"),
        Example(
            "vllm serve m --quantization fp8 --quantization-config '{}'",
            model_config=DENSE,
            versions=">=0.30,<0.31",
        ),
        Example(
            "vllm serve m --quantization fp_quant --allow-deprecated-quantization "
            "--quantization-config '{}'",
            model_config=DENSE,
            versions=">=0.30",
        ),
    ),
    good=(
        Example("vllm serve m --quantization-config '{}'", model_config=DENSE),
        Example(
            "vllm serve m --quantization fp8 --quantization-config '{}'",
            model_config=DENSE,
            versions=">=0.31",
        ),
        Example(
            "vllm serve m --quantization online --quantization-config.linear mxfp8",
            model_config=DENSE,
        ),
    ),
)
def empty(config: ServeConfig) -> Iterator[Finding]:
    """Look for a kind of layer, where the settings are read."""
    if not isinstance(config[_CONFIG], Mapping):
        return
    if any(config[f"{_CONFIG}.{kind}"] is not None for kind in _KINDS):
        return
    asked, method = requested_quantization(config), checkpoint_method(config)
    if asked == "online" or (is_newer_composition(config) and _lies_over(config, asked, method)):
        drop = (RemoveFlag(_CONFIG), RemoveFlag(DEST)) if asked else (RemoveFlag(_CONFIG),)
        yield empty.finding(
            "--quantization-config names neither linear nor moe nor targets",
            location=config.place(_CONFIG),
            fix=Fix("drop the settings", drop, safe=False),
            engine_message="OnlineQuantizationConfig requires at least one of "
            "quantization_config.linear, quantization_config.moe, or quantization_config.targets "
            "to be set.",
        )


def _lies_over(config: ServeConfig, asked: str | None, method: str | None) -> bool:
    """Whether the settings are composed with another method's (`get_quant_config`)."""
    if asked == "humming" or method in {"awq", "gptq", "fp8", "compressed-tensors"}:
        return True
    if method is not None:
        return asked is None and method in {"modelopt", "modelopt_fp4", "mxfp4"}
    return asked in _COMPOSED or (asked == "fp8" and not since(config, "0.31"))


@rule(
    id="quantization-config-method",
    title="--quantization-config is for quantising while loading",
    explanation="Up to 0.29 the settings go with `online` and its shorthands only, not with the "
    "method of a checkpoint.",
    remedy="Drop `--quantization-config`, or use a shorthand such as `fp8_per_tensor`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/quantization.py::resolve_quantization_config",
    versions="<0.30",
    bad=(Example("vllm serve m --quantization fp8 --quantization-config.linear mxfp8"),),
    good=(
        Example("vllm serve m --quantization fp8_per_tensor --quantization-config.linear mxfp8"),
    ),
)
def method(config: ServeConfig) -> Iterator[Finding]:
    """Compare the method with the shorthands."""
    asked = config[DEST]
    shorthands = config.catalogue.registries.get("online_quant_shorthands", ())
    if asked is None or config[_CONFIG] is None or not shorthands or asked in shorthands:
        return
    yield method.finding(
        f"--quantization-config does not go with --quantization {asked}",
        location=config.place(_CONFIG),
        fix=_WITHOUT,
        engine_message="quantization_config is only supported when quantization is one of",
    )


@rule(
    id="quantization-dtype",
    title="The quantisation does not compute in this dtype",
    explanation="Most methods take bfloat16 and float16, and not float32; the MXFP4 weights of "
    "gpt-oss take bfloat16 only.",
    remedy="Leave `--dtype` out.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._get_quantization_config",
    bad=(
        Example("vllm serve m --dtype float32", model_config=LATENT),
        Example("vllm serve m --quantization fp8_per_tensor --dtype float32", model_config=DENSE),
        Example("vllm serve m --dtype float16", model_config=GPT_OSS),
        Example("vllm serve m --dtype float32", model_config=NVFP4),
    ),
    good=(
        Example("vllm serve m --dtype float16", model_config=NVFP4),
        Example("vllm serve m --dtype float16", model_config=LATENT),
        Example("vllm serve m --dtype float32", model_config=DENSE),
        Example("vllm serve m --dtype bfloat16", model_config=GPT_OSS),
    ),
    covers=("quant-act-dtype",),
)
def dtype(config: ServeConfig) -> Iterator[Finding]:
    """Compare the dtype that was asked for; what vLLM chooses itself fits."""
    asked = config["dtype"]
    asked = {"half": "float16", "float": "float32"}.get(asked, asked)
    if asked not in {"float32", "float16"}:
        return
    given, found = requested_quantization(config), checkpoint_method(config)
    shorthands = config.catalogue.registries.get("online_quant_shorthands", ())
    taken = quantization_override(config) or (found if found is not None else given)
    is_oss = found == "mxfp4" and hf_value(config, "model_type") == "gpt_oss"
    half = taken in _HALF_ONLY or (found is None and given in shorthands)
    if given == "humming" or not (is_oss or (half and asked == "float32")):
        return
    yield dtype.finding(
        f"the quantisation {taken} does not compute in {asked}",
        location=config.place("dtype"),
        fix=Fix("let vLLM choose the dtype", (RemoveFlag("dtype"),), safe=False),
        engine_message=f"torch.{asked} is not supported for quantization method",
        evidence={"quantization": taken, "dtype": asked},
    )
