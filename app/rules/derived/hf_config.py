"""The model's config.json as vLLM has it after `--hf-overrides`, and its text part.

A key that config.json leaves out has the default of its `transformers` (or vLLM) configuration
class; those defaults are in the catalogue, by `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.catalogue import ModelTypeFacts
from app.rules.derived import derived
from app.serve_config.serve_config import Abstain, ServeConfig, Unresolved

MODEL_CONFIG: Final = "the model's config.json (`model_config`)"

# Parts that are configurations of their own, in which overrides are merged key by key; other
# mappings (`rope_scaling`, `quantization_config`) are replaced as a whole.
_NOT_NESTED: Final = frozenset({"quantization_config", "compression_config"})
# Where the text model's part is, in classes that the catalogue does not know.
_TEXT_PARTS: Final = ("text_config", "thinker_config", "llm_config", "language_config")
_NO_FACTS: Final = ModelTypeFacts()


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
    for key, given in overrides.items():
        value = config[f"hf_overrides.{key}"] if isinstance(given, Unresolved) else given
        inner = merged.get(key)
        nested = isinstance(inner, Mapping) and str(key).endswith("_config")
        if isinstance(value, Mapping) and nested and key not in _NOT_NESTED:
            value = _merged(inner, value)
        merged[key] = value
        if key in ("rope_scaling", "rope_parameters"):
            merged.pop("rope_parameters" if key == "rope_scaling" else "rope_scaling", None)
    return merged


@derived
def hf_text_config(config: ServeConfig) -> Mapping[str, Any]:
    """Give the part of config.json that describes the language model, as it is written.

    Source: `transformers_utils/config.py::get_hf_text_config`.

    Raises:
        Abstain: as `hf_config`.
    """
    return _text_part(config)[0]


@derived
def knows_model_type(config: ServeConfig) -> bool:
    """Whether the catalogue has the configuration class of the text model.

    Without it, a key that config.json leaves out may have any default.
    """
    return _text_facts(config) is not _NO_FACTS


def hf_value(config: ServeConfig, key: str) -> Any:
    """Read a top-level attribute (`getattr(hf_config, key, None)`); None if absent.

    Raises:
        Abstain: nobody gave config.json and no override gives the key.
    """
    if config.model_config is None:
        overrides = config["hf_overrides"]
        if isinstance(overrides, Mapping) and key in overrides:
            return config[f"hf_overrides.{key}"]
    whole = hf_config(config)
    return _read(whole, key, _facts_of(config, whole.get("model_type")))


def text_value(config: ServeConfig, key: str) -> Any:
    """Read an attribute of the text part (`getattr(hf_text_config, key, None)`); None if absent.

    What config.json leaves out has the default of its class, where the catalogue knows it.

    Raises:
        Abstain: nobody gave config.json.
    """
    return _read(hf_text_config(config), key, _text_facts(config))


def number(value: Any) -> int | None:
    """Give a whole number as config.json writes it, or None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def _read(part: Mapping[str, Any], key: str, facts: ModelTypeFacts) -> Any:
    value = part.get(key)
    alias = facts.aliases.get(key)
    if value is None and alias is not None:
        value = part.get(alias)
    if value is None and key not in part and alias not in part:
        value = facts.defaults.get(key)  # one that is null has none
    gate = facts.gated.get(key)
    return None if gate is not None and not part.get(gate) else value


@derived
def _text_facts(config: ServeConfig) -> ModelTypeFacts:
    part, kind = _text_part(config)
    own = part.get("model_type")
    return _facts_of(config, own if isinstance(own, str) else kind)


@derived
def _text_part(config: ServeConfig) -> tuple[Mapping[str, Any], str | None]:
    """Give the text part and the model type that it has where it does not say so."""
    whole = hf_config(config)
    facts = _facts_of(config, whole.get("model_type"))
    if facts.text is not None:
        part: Any = whole
        for name in facts.text[0].split("."):
            part = part.get(name) if isinstance(part, Mapping) else None
        if isinstance(part, Mapping):
            return part, facts.text[1]
        if facts.flat:  # as older files have it: the class makes the part of the whole
            return {**whole, "model_type": facts.text[1]}, facts.text[1]
        return {}, facts.text[1]
    if facts is _NO_FACTS:
        for name in _TEXT_PARTS:
            part = whole.get(name)
            if isinstance(part, Mapping):
                inner = part.get("text_config")
                return (inner if isinstance(inner, Mapping) else part), None
    return whole, None


def _facts_of(config: ServeConfig, model_type: object) -> ModelTypeFacts:
    return config.catalogue.model_configs.get(str(model_type), _NO_FACTS)


def _merged(target: Any, updates: Mapping[str, Any]) -> dict[str, Any]:
    # `ModelConfig._update_nested`
    result = dict(target)
    for key, value in updates.items():
        inner = result.get(key)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[key] = _merged(inner, value) if both else value
    return result
