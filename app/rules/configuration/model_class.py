"""The model's class: whether this vLLM has it, and whether it generates or pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.rules.configuration.example_models import ENCODER
from app.rules.configuration.model_length import AREA
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.model import (
    MODEL_CONFIG,
    architectures,
    convert_type,
    has_ability,
    hf_value,
    runner_type,
)
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

_POST_INIT: Final = "vllm/config/model.py::ModelConfig.__post_init__"
_REGISTRY: Final = "vllm/model_executor/models/registry.py::_ModelRegistry._raise_for_unsupported"
_IMPLEMENTATIONS: Final = frozenset({"auto", "vllm", "transformers", "terratorch"})
_OVERRIDES: Final = "model_class_overrides"
_OLD: Final = {**DENSE, "architectures": ["MotifForCausalLM"]}
_UNKNOWN: Final = {**DENSE, "architectures": ["OurOwnForCausalLM"]}
_WRAPPED: Final = {**DENSE, "architectures": ["HeliumForCausalLM"], "model_type": "helium"}
_CUSTOM: Final = {
    **DENSE,
    "model_type": "our_own",
    "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
}


@rule(
    id="model-runner-generate",
    title="The model cannot generate",
    explanation="`--runner generate` (or draft) is for models that give tokens. An embedding, "
    "classification or reward model is refused.",
    remedy="Leave `--runner` out, or say `--runner pooling`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    bad=(Example("vllm serve m --runner generate", model_config=ENCODER),),
    good=(
        Example("vllm serve m --runner pooling", model_config=ENCODER),
        Example("vllm serve m --runner generate", model_config=DENSE),
    ),
    covers=("runner-generate-on-embedding", "runner-generate-unsupported"),
)
def runner_generate(config: ServeConfig) -> Iterator[Finding]:
    """Look for a model that only pools."""
    runner = config["runner"]
    if runner not in ("generate", "draft") or has_ability(config, "is_text_generation_model"):
        return
    pools = has_ability(config, "is_pooling_model")
    if not pools and runner != "generate":
        return
    yield runner_generate.finding(
        f"--runner {runner}: {architectures(config)[0]} gives no tokens",
        location=config.place("runner"),
        fix=Fix("leave the runner to the model", (RemoveFlag("runner"),), safe=False),
        engine_message=f"Embedding models do not support `--runner {runner}`."
        if pools
        else "This model does not support `--runner generate`.",
    )


@rule(
    id="model-runner-pooling",
    title="The model cannot pool without a conversion",
    explanation="A model that generates becomes a pooling model by a conversion (`embed` or "
    "`classify`), which vLLM chooses unless `--convert none` forbids it.",
    remedy="Leave `--convert` out, or say `embed` or `classify`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    bad=(Example("vllm serve m --runner pooling --convert none", model_config=DENSE),),
    good=(
        Example("vllm serve m --runner pooling", model_config=DENSE),
        Example("vllm serve m --runner pooling --convert none", model_config=ENCODER),
    ),
    covers=("runner-pooling-unsupported",),
)
def runner_pooling(config: ServeConfig) -> Iterator[Finding]:
    """Look for a model that generates and may not be converted."""
    if config["convert"] != "none" or runner_type(config) != "pooling":
        return
    if convert_type(config) != "none" or has_ability(config, "is_pooling_model"):
        return
    yield runner_pooling.finding(
        f"--convert none: {architectures(config)[0]} is no pooling model",
        location=config.place("convert"),
        related=tuple(p for p in (config.place("runner"),) if p is not None),
        fix=Fix("leave the conversion to vLLM", (RemoveFlag("convert"),), safe=False),
        engine_message="This model does not support `--runner pooling`.",
    )


@rule(
    id="model-architecture-unsupported",
    title="This vLLM does not have the model's class",
    explanation="The class that config.json names was removed from vLLM, or is none of its "
    "registry, and nothing else can run it: Transformers has no such class to wrap, or "
    "`--model-impl vllm` forbids that, and there is no code in the checkpoint (`auto_map`).",
    remedy="Use the vLLM version that had it, install the plugin that has it, or serve another "
    "model.",
    severity=Severity.ERROR,
    area=AREA,
    source=_REGISTRY,
    bad=(
        Example("vllm serve m", model_config=_OLD),
        Example("vllm serve m --model-impl vllm", model_config=_UNKNOWN),
        Example("vllm serve m --model-impl transformers", model_config=_OLD),
    ),
    good=(
        Example("vllm serve m", model_config=DENSE),
        Example("vllm serve m --model-impl vllm", model_config=DENSE),
    ),
    covers=("arch-removed", "arch-out-of-tree", "arch-unsupported"),
)
def architecture_unsupported(config: ServeConfig) -> Iterator[Finding]:
    """Look the class up where vLLM does."""
    named, implementation = _unregistered(config), config["model_impl"]
    if not named or _has_own_model_code(config):
        return
    if implementation not in ("auto", "vllm", "transformers"):
        return
    registries = config.catalogue.registries
    removed = registries.get("previously_supported_archs", {})
    plugins = registries.get("out_of_tree_archs", {})
    old = next((name for name in named if name in removed or name in plugins), None)
    if implementation != "vllm":
        if old is None or named[0] in registries.get("given_up_archs_in_transformers", named):
            return
        if named[0] != old:
            raise Abstain(f"whether Transformers has {named[0]}")
    if implementation != "transformers" and any(_converts(config, name) for name in named):
        return
    if old is not None and old in removed:
        problem = f"{old} was removed after vLLM {removed[old]}"
        said = f"Model architecture {old} was supported in vLLM until v{removed[old]}"
    elif old is not None:
        problem = f"{old} is in a plugin now: {plugins[old]}"
        said = f"Model architecture {old} is not supported in-tree anymore."
    else:
        problem = f"{', '.join(named)} is none of the classes of this vLLM"
        said = f"Model architectures {list(named)} are not supported for now."
    if implementation == "transformers":
        said = f"Cannot find model module. {named[0]!r} is not a registered model in the"
    yield architecture_unsupported.finding(
        problem,
        location=config.place("hf_overrides") or config.place("model"),
        engine_message=said,
        evidence={"architectures": list(named)},
    )


@rule(
    id="model-architecture-fallback",
    title="The model runs on Transformers' own code",
    explanation="vLLM has no implementation of the class that config.json names, and wraps that of "
    "Transformers (or of the checkpoint). That is slower, supports fewer features, and is refused "
    "where the class is missing or cannot be wrapped, which depends on the Transformers "
    "installed.",
    remedy="Check that the installed Transformers has the class, or serve a model that vLLM has.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/model_executor/models/registry.py::_ModelRegistry._try_resolve_transformers",
    bad=(
        Example("vllm serve m", model_config=_WRAPPED),
        Example("vllm serve m --model-impl transformers", model_config=_WRAPPED),
    ),
    good=(
        Example("vllm serve m", model_config=DENSE),
        Example("vllm serve m", model_config=_OLD, note="refused"),
    ),
    covers=("arch-transformers-missing", "arch-transformers-incompatible"),
)
def architecture_fallback(config: ServeConfig) -> Iterator[Finding]:
    """Look for a class that vLLM does not register."""
    named = _unregistered(config)
    if not named or config["model_impl"] not in ("auto", "transformers"):
        return
    if any(_converts(config, name) for name in named):
        return
    registries = config.catalogue.registries
    if not _has_own_model_code(config):
        old = {**registries.get("previously_supported_archs", {})}
        old.update(registries.get("out_of_tree_archs", {}))
        if named[0] in old and named[0] not in registries.get("given_up_archs_in_transformers", ()):
            return
    yield architecture_fallback.finding(
        f"vLLM does not have {named[0]}; it will wrap the class of Transformers, if that has it",
        location=config.place("hf_overrides") or config.place("model"),
        evidence={"architectures": list(named)},
    )


def _unregistered(config: ServeConfig) -> tuple[str, ...]:
    """Give the classes of config.json where none of them is registered."""
    if config.model_config is None or config[_OVERRIDES]:
        return ()
    names = hf_value(config, "architectures")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    known = config.catalogue.registries.get("model_archs", ())
    return () if any(name in known for name in names) else tuple(names)


def _has_own_model_code(config: ServeConfig) -> bool:
    code = hf_value(config, "auto_map")
    return isinstance(code, Mapping) and any(str(name).startswith("AutoModel") for name in code)


# Ends of class names that `_normalize_arch` exchanges for each other.
_SUFFIXES: Final = (
    *("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel"),
    *("ForTextEncoding", "EmbeddingModel", "ForSequenceClassification"),
    *("ForTokenClassification", "ForAudioClassification", "ForImageClassification"),
    *("ForVideoClassification", "ClassificationModel", "ForRewardModeling", "RewardModel"),
    "Model",
)


def _converts(config: ServeConfig, name: str) -> bool:
    """Whether a registered class has the same name but for its end (`_normalize_arch`)."""
    known = config.catalogue.registries.get("model_archs", ())
    return any(
        name.removesuffix(end) + other in known
        for end in _SUFFIXES
        if name.endswith(end)
        for other in _SUFFIXES
    )


@rule(
    id="model-remote-code",
    title="The checkpoint needs its own code",
    explanation="Neither Transformers nor vLLM has a configuration class for the model's "
    "`model_type`, and config.json says that one comes with the checkpoint (`auto_map`). Code from "
    "a checkpoint only runs with `--trust-remote-code`. What Transformers has was read from the "
    "release that vLLM was captured with; a newer one may know the type.",
    remedy="Look at that code, then add `--trust-remote-code`; or update Transformers.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/transformers_utils/config.py::HFConfigParser.parse",
    bad=(Example("vllm serve m", model_config=_CUSTOM),),
    good=(
        Example(
            "vllm serve m",
            model_config={**DENSE, "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}},
            note="Transformers knows llama",
        ),
    ),
    covers=("trust-remote-code-needed",),
)
def remote_code(config: ServeConfig) -> Iterator[Finding]:
    """Look for a configuration class that only the checkpoint has."""
    if config.model_config is None or config["trust_remote_code"]:
        return
    code = config.model_config.get("auto_map")
    if not isinstance(code, Mapping) or not isinstance(code.get("AutoConfig"), str):
        return
    kind, known = hf_value(config, "model_type"), config.catalogue.registries.get("model_types")
    if not isinstance(kind, str) or known is None or kind in known:
        return
    yield remote_code.finding(
        f"the model type {kind} needs {code['AutoConfig']} from the checkpoint, which only runs "
        "with --trust-remote-code",
        location=config.place("model"),
        fix=Fix("add --trust-remote-code", (SetFlag("trust_remote_code", value=True),), safe=False),
        engine_message="contains custom code which must be executed to correctly load the model.",
        evidence={"model_type": kind, "auto_map": code["AutoConfig"]},
    )


@rule(
    id="model-class-overrides",
    title="Model classes are overridden",
    explanation="`--model-class-overrides` registers other classes for architectures, for "
    "development. Each target is written `module:class`; anything else is refused.",
    remedy="Write `module:class`, and keep the option out of production.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/models/registry.py::_ModelRegistry.register_model",
    bad=(Example("""vllm serve m --model-class-overrides '{"LlamaForCausalLM": "mine"}'"""),),
    good=(Example("vllm serve m"),),
    covers=("model-class-override-format",),
)
def class_overrides(config: ServeConfig) -> Iterator[Finding]:
    """Look at the form of each target."""
    overrides = config[_OVERRIDES]
    if not isinstance(overrides, Mapping):
        return
    for name, target in overrides.items():
        if isinstance(target, str) and len(target.split(":")) != 2:
            yield class_overrides.finding(
                f"--model-class-overrides: {target!r} (for {name}) is not module:class",
                location=config.place(_OVERRIDES),
                fix=Fix("drop the overrides", (RemoveFlag(_OVERRIDES),), safe=False),
                engine_message="Expected a string in the format `<module>:<class>`",
            )


@rule(
    id="model-class-overrides-used",
    title="Model classes are overridden for debugging",
    explanation="vLLM warns that `--model-class-overrides` is a means for development.",
    remedy="Register the class in a plugin.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/model.py::ModelConfig._maybe_register_model_class_overrides",
    bad=(Example("""vllm serve m --model-class-overrides '{"MineForCausalLM": "mine:Model"}'"""),),
    good=(Example("vllm serve m"),),
    covers=("model-class-overrides",),
)
def class_overrides_used(config: ServeConfig) -> Iterator[Finding]:
    """Look for the option."""
    overrides = config[_OVERRIDES]
    if isinstance(overrides, Mapping) and overrides:
        yield class_overrides_used.finding(
            f"classes of {', '.join(map(str, overrides))} are overridden, which is for debugging",
            location=config.place(_OVERRIDES),
            fix=Fix("drop the overrides", (RemoveFlag(_OVERRIDES),), safe=False),
        )


@rule(
    id="model-implementation-unknown",
    title="`--model-impl` has a value that vLLM does not know",
    explanation="Any text is accepted; what is none of auto, vllm, transformers and terratorch "
    "acts as `vllm`, without the way out to Transformers.",
    remedy="Say one of the four.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(Example("vllm serve m --model-impl hf"),),
    good=(Example("vllm serve m --model-impl transformers", model_config=DENSE),),
    covers=("model-impl-unknown",),
)
def implementation_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the value up."""
    asked = config["model_impl"]
    if isinstance(asked, str) and asked not in _IMPLEMENTATIONS:
        yield implementation_unknown.finding(
            f"--model-impl {asked} acts as vllm, because it is none of "
            f"{', '.join(sorted(_IMPLEMENTATIONS))}",
            location=config.place("model_impl"),
            fix=Fix("set --model-impl auto", (SetFlag("model_impl", "auto"),), safe=False),
            evidence={"asked": asked, "effective": "vllm", "dest": "model_impl"},
        )


@rule(
    id="model-architecture-missing",
    title="config.json names no model class",
    explanation="Without `architectures` vLLM derives the class from `model_type`, which may be "
    "another one than the checkpoint was made for.",
    remedy="Add `architectures`, or say it with `--hf-overrides`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/transformers_utils/config.py::get_config",
    bad=(
        Example(
            "vllm serve m",
            model_config={k: v for k, v in DENSE.items() if k != "architectures"},
        ),
    ),
    good=(Example("vllm serve m", model_config=DENSE),),
    covers=("arch-field-missing",),
)
def architecture_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for the key."""
    if config.model_config is None or hf_value(config, "architectures"):
        return
    if config["config_format"] == "mistral":
        raise Abstain(MODEL_CONFIG)
    yield architecture_missing.finding(
        "config.json has no architectures; vLLM goes by model_type "
        f"{hf_value(config, 'model_type')}",
        location=config.place("hf_overrides") or config.place("model"),
    )
