"""The model's config.json as vLLM has it after `--hf-overrides`, and its text part.

A key that config.json leaves out has the default of its `transformers` (or vLLM) configuration
class; those defaults are in the catalogue, by `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.rules.derived import derived
from app.serve_config.serve_config import Abstain, ServeConfig, Unresolved

MODEL_CONFIG: Final = "the model's config.json (`model_config`)"

# Parts that are configurations of their own, in which overrides are merged key by key; other
# mappings (`rope_scaling`, `quantization_config`) are replaced as a whole.
_NOT_NESTED: Final = frozenset({"quantization_config", "compression_config"})
# Where the text model's part is, in the order that vLLM's classes look.
_TEXT_PARTS: Final = ("text_config", "thinker_config", "llm_config", "language_config")


@derived
def hf_config(config: ServeConfig) -> Mapping[str, Any]:
    """Give config.json with the overrides applied.

    Source: `config/model.py::ModelConfig.__post_init__`,
    `transformers_utils/config.py::get_config`.

    Raises:
        Abstain: nobody gave config.json, or vLLM reads another file instead of it.
    """
    if config.model_config is None:
        raise Abstain(MODEL_CONFIG)
    if config["config_format"] == "mistral":
        raise Abstain("the model's params.json, which `--config-format mistral` reads")
    overrides = config["hf_overrides"]
    if not isinstance(overrides, Mapping) or not overrides:
        return config.model_config
    merged = dict(config.model_config)
    for key, value in overrides.items():
        if isinstance(value, Unresolved):
            value = config[f"hf_overrides.{key}"]  # raises, with the place
        inner = merged.get(key)
        nested = isinstance(inner, Mapping) and str(key).endswith("_config")
        if isinstance(value, Mapping) and nested and key not in _NOT_NESTED:
            value = _merged(inner, value)
        merged[key] = value
    return merged


@derived
def hf_text_config(config: ServeConfig) -> Mapping[str, Any]:
    """Give the part of config.json that describes the language model.

    Source: `transformers_utils/config.py::get_hf_text_config`.

    Raises:
        Abstain: as `hf_config`.
    """
    whole = hf_config(config)
    for name in _TEXT_PARTS:
        part = whole.get(name)
        if isinstance(part, Mapping):
            inner = part.get("text_config")
            return inner if isinstance(inner, Mapping) else part
    return whole


def hf_value(config: ServeConfig, key: str) -> Any:
    """Read a top-level attribute (`getattr(hf_config, key, None)`); None if absent.

    Raises:
        Abstain: nobody gave config.json and no override gives the key.
    """
    if config.model_config is None:
        overrides = config["hf_overrides"]
        if isinstance(overrides, Mapping) and key in overrides:
            return config[f"hf_overrides.{key}"]
    return hf_config(config).get(key)


def text_value(config: ServeConfig, key: str) -> Any:
    """Read an attribute of the text part (`getattr(hf_text_config, key, None)`); None if absent.

    Raises:
        Abstain: nobody gave config.json.
    """
    return hf_text_config(config).get(key)


def number(value: Any) -> int | None:
    """Give a whole number as config.json writes it, or None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def _merged(target: Any, updates: Mapping[str, Any]) -> dict[str, Any]:
    # `ModelConfig._update_nested`
    result = dict(target)
    for key, value in updates.items():
        inner = result.get(key)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[key] = _merged(inner, value) if both else value
    return result
