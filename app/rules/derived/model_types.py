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
