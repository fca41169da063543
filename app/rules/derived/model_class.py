"""The model class that vLLM takes, what it can do, and whether the model generates or pools.

Source: `model_executor/models/registry.py::ModelRegistry.inspect_model_cls`,
`config/model.py::ModelConfig._get_runner_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.rules.derived import derived
from app.rules.derived.hf_config import (
    MODEL_CONFIG,
    hf_config,
    hf_text_config,
    hf_value,
    knows_model_type,
)
from app.rules.derived.model_sizes import is_moe
from app.serve_config.serve_config import Abstain, ServeConfig

# `config/model.py::_SUFFIX_TO_DEFAULTS`: runner and conversion of a class by the end of its name.
_BY_SUFFIX: Final = (
    ("ForCausalLM", "generate", "none"),
    ("ForConditionalGeneration", "generate", "none"),
    ("ChatModel", "generate", "none"),
    ("LMHeadModel", "generate", "none"),
    ("ForTextEncoding", "pooling", "embed"),
    ("EmbeddingModel", "pooling", "embed"),
    ("ForSequenceClassification", "pooling", "classify"),
    ("ForTokenClassification", "pooling", "classify"),
    ("ForAudioClassification", "pooling", "classify"),
    ("ForImageClassification", "pooling", "classify"),
    ("ForVideoClassification", "pooling", "classify"),
    ("ClassificationModel", "pooling", "classify"),
    ("ForRewardModeling", "pooling", "embed"),
    ("RewardModel", "pooling", "embed"),
    ("Model", "pooling", "embed"),
)

_POOLING_DEFAULTS: Final = {
    "default_seq_pooling_type": "LAST",
    "default_tok_pooling_type": "ALL",
    "attn_type": "decoder",
}


@derived
def architectures(config: ServeConfig) -> tuple[str, ...]:
    """Give the model classes that config.json names.

    Raises:
        Abstain: no config.json, or it names none (vLLM then derives one from `model_type`).
    """
    names = hf_value(config, "architectures")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise Abstain(f"`architectures` in {MODEL_CONFIG}")
    return tuple(names)


@derived
def model_class(config: ServeConfig) -> str:
    """Give the registered class whose abilities count; a class to convert counts as its base.

    Source: `registry.py::inspect_model_cls`, `_normalize_arch`.

    Raises:
        Abstain: none is registered (the Transformers backend may take it), or options choose
            another implementation.
    """
    names = architectures(config)
    known = _registered(config)
    implementation = config["model_impl"]
    if implementation == "terratorch":
        return "Terratorch"
    overridden = config["model_class_overrides"]
    if isinstance(overridden, Mapping) and any(name in overridden for name in names):
        raise Abstain("the classes in --model-class-overrides")
    if implementation == "transformers":
        return _of_transformers(config)
    taken = next((name for name in names if name in known), None)
    if taken is not None:
        return taken
    runner, convert = runner_type(config), convert_type(config)
    if convert != "none" or implementation == "vllm":
        bases = (_base(name, known, runner, convert) for name in names)
        base = next(filter(None, bases), None)
        if base is not None:
            return base
    if implementation == "vllm":
        raise Abstain(f"what vLLM makes of {', '.join(names)}, which it does not register")
    return _of_transformers(config)


def _of_transformers(config: ServeConfig) -> str:
    """Give the class that wraps a model of Transformers (`_get_transformers_backend_cls`).

    Where Transformers has no such model, or one that cannot be wrapped, vLLM refuses.

    Raises:
        Abstain: a model type that is not known, so that its own code may count.
    """
    if not knows_model_type(config):
        raise Abstain(f"what vLLM makes of {', '.join(architectures(config))}")
    name = "Transformers"
    name += "MultiModal" if hf_config(config) is not hf_text_config(config) else ""
    name += "MoE" if is_moe(config) else ""
    first = architectures(config)[0]
    match = next((entry for entry in _BY_SUFFIX if first.endswith(entry[0])), None)
    runner = config["runner"]
    if runner in (None, "auto"):
        runner = match[1] if match is not None else None
    task = match[2] if match is not None else None
    if runner == "pooling" and task in ("embed", "classify"):
        return name + ("EmbeddingModel" if task == "embed" else "ForSequenceClassification")
    return f"{name}ForCausalLM"


@derived
def _registered(config: ServeConfig) -> frozenset[str]:
    return frozenset(config.catalogue.registries.get("model_archs", ()))


def _base(name: str, known: frozenset[str], runner: str, convert: str) -> str | None:
    """Give the registered class that a class is made of by conversion (`_normalize_arch`)."""
    for suffix, its_runner, its_convert in _BY_SUFFIX:
        if (its_runner, its_convert) == (runner, convert) and name.endswith(suffix):
            candidates = (name.replace(suffix, other) for other, _, _ in _BY_SUFFIX)
            return next((candidate for candidate in candidates if candidate in known), None)
    return None


def has_ability(config: ServeConfig, ability: str) -> bool:
    """Whether the model class that vLLM takes has an ability, such as `is_hybrid`.

    Raises:
        Abstain: the class is unknown, or could not be inspected for this version.
    """
    name = model_class(config)
    answer = config.catalogue.has_ability(name, ability)
    if answer is None:
        raise Abstain(f"whether {name} has `{ability}`")
    return answer


@derived
def is_hybrid(config: ServeConfig) -> bool:
    """Whether attention and state-space layers alternate (`config/model.py::is_hybrid`)."""
    if not has_ability(config, "is_hybrid"):
        return False
    layers = hf_value(config, "layer_types")
    return not isinstance(layers, list) or any(
        layer not in ("attention", "full_attention") for layer in layers
    )


def is_attention_free(config: ServeConfig) -> bool:
    """Whether no layer has attention (`config/model.py::is_attention_free`)."""
    return has_ability(config, "is_attention_free")


def is_multimodal(config: ServeConfig) -> bool:
    """Whether the class takes images, audio or video (`ModelConfig.is_multimodal_model`)."""
    return has_ability(config, "supports_multimodal")


def supports_lora(config: ServeConfig) -> bool:
    """Whether the class takes adapters (`SupportsLoRA`)."""
    return has_ability(config, "supports_lora")


def supports_pp(config: ServeConfig) -> bool:
    """Whether the class can be cut into pipeline stages (`SupportsPP`)."""
    return has_ability(config, "supports_pp")


@derived
def runner_type(config: ServeConfig) -> str:
    """Give `generate`, `pooling` or `draft` (`config/model.py::_get_runner_type`).

    A model with a Sentence Transformers `modules.json` pools as well; as nobody gives that file,
    it is taken to be absent.

    Raises:
        Abstain: the class could not be inspected.
    """
    runner, convert = config["runner"], config["convert"]
    if runner not in (None, "auto"):
        return str(runner)
    if convert not in (None, "auto", "none"):
        return "pooling"
    known = _registered(config)
    for name in architectures(config):
        if name in known:
            if has_ability(config, "is_pooling_model"):
                return "pooling"
            if has_ability(config, "is_text_generation_model"):
                return "generate"
        match = next((entry for entry in _BY_SUFFIX if name.endswith(entry[0])), None)
        if match is not None:
            return match[1]
    return "generate"


@derived
def convert_type(config: ServeConfig) -> str:
    """Give `none`, `embed` or `classify` (`config/model.py::_get_convert_type`).

    Raises:
        Abstain: the class could not be inspected.
    """
    convert = config["convert"]
    if convert not in (None, "auto"):
        return str(convert)
    runner = runner_type(config)
    known = _registered(config)
    for name in architectures(config):
        if name in known:
            if runner == "generate" and has_ability(config, "is_text_generation_model"):
                return "none"
            if runner == "pooling" and has_ability(config, "is_pooling_model"):
                return "none"
        for suffix, default_runner, default_convert in _BY_SUFFIX:
            if runner == default_runner and name.endswith(suffix):
                return default_convert
    return "embed" if runner == "pooling" else "none"


def pooling_default(config: ServeConfig, key: str) -> str:
    """Give how the model class pools or attends, unless `--pooler-config` says otherwise.

    `key` is `default_seq_pooling_type` (LAST, CLS, MEAN), `default_tok_pooling_type` (ALL, STEP)
    or `attn_type` (decoder, encoder_only, attention_free, …).

    Source: `model_executor/models/interfaces_base.py::VllmModelForPooling`.
    """
    own = config.catalogue.model_pooling.get(model_class(config), {})
    return own.get(key, _POOLING_DEFAULTS[key])


def is_pooling(config: ServeConfig) -> bool:
    """Whether the model pools rather than generates (`runner_type == "pooling"`)."""
    return runner_type(config) == "pooling"
