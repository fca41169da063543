"""The dtype and the quantisation of the weights.

Source: `config/model.py::_get_and_verify_dtype`, `_resolve_auto_dtype`, and
`model_arch_config_convertor.py::get_quantization_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.rules.derived import derived
from app.rules.derived.hardware import capability, machine_of
from app.rules.derived.hf_config import hf_config, hf_text_config
from app.rules.derived.model_class import is_pooling
from app.serve_config.serve_config import Abstain, ServeConfig

_NAMES: Final = {"half": "float16", "float": "float32"}


@derived
def checkpoint_dtype(config: ServeConfig) -> str:
    """Give the dtype that config.json names (`dtype`, or `torch_dtype` as it was called).

    Raises:
        Abstain: it names none; vLLM then reads the weights.
    """
    parts: list[Mapping[str, Any]] = [hf_config(config), hf_text_config(config)]
    for name in ("vision_config", "encoder_config"):
        part = parts[0].get(name)
        if isinstance(part, Mapping):
            parts.append(part)
    for part in parts:
        value = part.get("dtype", part.get("torch_dtype"))
        if isinstance(value, str) and value != "auto":
            name = value.removeprefix("torch.")
            return _NAMES.get(name, name)
    raise Abstain("the dtype of the weights (config.json has no `dtype`)")


@derived
def supported_dtypes(config: ServeConfig) -> tuple[str, ...]:
    """Give the dtypes that the platform supports, its favourite first.

    Source: `supported_dtypes` of `platforms/{cuda,rocm,cpu}.py`.

    Raises:
        Abstain: the GPU is not known.
    """
    machine = machine_of(config)
    if machine.is_cuda and capability(config) < (8, 0):
        return ("float16", "float32")
    if machine.is_cuda or machine.is_cpu or machine.is_rocm:
        return ("bfloat16", "float16", "float32")
    raise Abstain("which dtypes this hardware supports")


@derived
def model_dtype(config: ServeConfig) -> str:
    """Give the dtype that vLLM takes: `bfloat16`, `float16` or `float32`.

    Raises:
        Abstain: config.json or the hardware is needed and missing.
    """
    asked = config["dtype"]
    asked = asked.lower() if isinstance(asked, str) else "auto"
    if asked != "auto":
        return _NAMES.get(asked, asked)
    found = checkpoint_dtype(config)
    kind = hf_config(config).get("model_type")
    supported = [
        name
        for name in supported_dtypes(config)
        if not (name == "float16" and kind in config.catalogue.model_facts.float16_refused)
    ]
    preferred = supported[0]
    if "float16" in supported and is_pooling(config):
        preferred = "float16"
    if found == "float32":
        found = preferred
    return found if found in supported else preferred


@derived
def checkpoint_quantization(config: ServeConfig) -> Mapping[str, Any] | None:
    """Give the quantisation of the checkpoint, its `quant_method` normalised; None without one.

    Source: `get_quantization_config`, `_normalize_quantization_config`.
    """
    for part in (hf_config(config), hf_config(config).get("text_config")):
        if not isinstance(part, Mapping):
            continue
        found = part.get("quantization_config")
        if not isinstance(found, Mapping):
            found = part.get("compression_config")
        if isinstance(found, Mapping):
            return {**found, "quant_method": _method(found)}
    return None


# Of these names any asks for the kernels that the checkpoint's method has now.
_SAME_FAMILY: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "gptq": ("auto_gptq", frozenset({"gptq", "gptq_marlin", "auto_gptq", "marlin"})),
    "awq": ("auto_awq", frozenset({"awq", "awq_marlin", "auto_awq", "marlin"})),
}


@derived
def quantization_override(config: ServeConfig) -> str | None:
    """Give the method that takes a checkpoint over from the one it names; None if none does.

    Source: `override_quantization_method` of the methods, in the order of
    `config/model.py::ModelConfig._verify_quantization`.

    Raises:
        Abstain: the checkpoint's algorithm (ModelOpt, MoE WNA16) would have to be read further.
    """
    found = checkpoint_quantization(config)
    if found is None:
        return None
    method, asked = str(found["quant_method"]), requested_quantization(config)
    if asked == "humming":
        return "humming"
    name, family = _SAME_FAMILY.get(method, ("", frozenset()))
    if name and (asked is None or asked in family):
        return None if method == "awq" and machine_of(config).is_cpu else name
    if method == "auto-round":
        return "inc"
    if method in ("mxfp4", "gpt_oss_mxfp4") and hf_config(config).get("model_type") == "gpt_oss":
        return "gpt_oss_mxfp4"
    if asked == "moe_wna16" and method in _SAME_FAMILY:
        raise Abstain("whether --quantization moe_wna16 takes this checkpoint")
    if "quant_algo" in found or "quantization" in found:
        return _modelopt(found)
    if str(hf_config(config).get("model_type")).startswith("deepseek_v4"):
        raise Abstain("which method takes a DeepSeek V4 checkpoint")
    return None


def _modelopt(found: Mapping[str, Any]) -> str | None:
    inner = found.get("quantization")
    algorithm = found.get("quant_algo") or (
        inner.get("quant_algo") if isinstance(inner, Mapping) else None
    )
    text = str(algorithm or "").upper()
    for part, method in (
        ("MIXED_PRECISION", "modelopt_mixed"),
        ("MXFP8", "modelopt_mxfp8"),
        ("FP4", "modelopt_fp4"),
    ):
        if part in text:
            return method
    return "modelopt" if text.startswith("FP8") else None


@derived
def quantization_method(config: ServeConfig) -> str | None:
    """Give the method that vLLM settles on, or None for none (`_verify_quantization`).

    Where `--quantization` contradicts the checkpoint, which vLLM refuses, it is what was asked.

    Raises:
        Abstain: config.json is missing, or `--quantization-config` decides.
    """
    override = quantization_override(config)
    if override is not None:
        return override
    asked = requested_quantization(config)
    if asked is not None:
        return asked
    found = checkpoint_quantization(config)
    if found is None and config["quantization_config"] is not None:
        raise Abstain("the method that --quantization-config stands for")
    return None if found is None else str(found["quant_method"]) or None


def requested_quantization(config: ServeConfig) -> str | None:
    """Give `--quantization` in lower case; None if it was not given."""
    asked = config["quantization"]
    return asked.lower() if isinstance(asked, str) else None


def _method(quantization: Mapping[str, Any]) -> str:
    inner = quantization.get("quantization")
    producer = quantization.get("producer")
    legacy = isinstance(inner, Mapping) and "modelopt_quant_config" in inner
    if legacy or (isinstance(producer, Mapping) and producer.get("name") == "modelopt"):
        algorithm = str(inner.get("quant_algo")).upper() if isinstance(inner, Mapping) else ""
        if algorithm in {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"}:
            return "modelopt"
        if algorithm == "NVFP4":
            return "modelopt_fp4"
    method = str(quantization.get("quant_method") or "").lower()
    return method.replace("compressed_tensors", "compressed-tensors")
