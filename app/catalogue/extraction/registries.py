"""What can be chosen by name: parsers, loaders, connectors, quantisation, architectures."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any, get_args

from app.catalogue.extraction.installed import Vllm
from app.catalogue.extraction.values import as_fact

Reader = Callable[[Vllm], Any]


def registry_facts(vllm: Vllm) -> dict[str, Any]:
    """Give each registry that this version has; one that cannot be read is noted."""
    facts = {}
    for name, read in _READERS.items():
        try:
            facts[name] = read(vllm)
        except Exception as error:  # importing what it names may fail in any way
            vllm.note_failure(f"registry {name}", error)
    return facts


def _table(module: str, name: str) -> Reader:
    """The keys of a dict, sorted."""
    return lambda vllm: sorted(getattr(vllm.module(module), name))


def _listed(module: str, name: str) -> Reader:
    """A sequence in its own order."""
    return lambda vllm: list(getattr(vllm.module(module), name))


def _literal(module: str, name: str) -> Reader:
    """The members of a `Literal` alias in its own order."""
    return lambda vllm: list(get_args(getattr(vllm.module(module), name)))


def _mapping(module: str, name: str) -> Reader:
    """A dict of names or classes; a class is given by name."""

    def read(vllm: Vllm) -> dict[str, Any]:
        return {
            str(key): value.__name__ if isinstance(value, type) else as_fact(value)
            for key, value in getattr(vllm.module(module), name).items()
        }

    return read


def _of_class(module: str, cls: str, *attributes: str) -> Reader:
    """The names in the first of a class's tables that exists."""

    def read(vllm: Vllm) -> list[str]:
        owner = getattr(vllm.module(module), cls)
        for attribute in attributes:
            table: Iterable[str] | Callable[[], Iterable[str]] | None
            table = getattr(owner, attribute, None)
            if table is not None:
                return sorted(table() if callable(table) else table)
        raise AttributeError(f"{cls} has none of {', '.join(attributes)}")

    return read


def _members(module: str, cls: str) -> Reader:
    """The names of an enum's members, aliases included, in their own order."""
    return lambda vllm: list(getattr(vllm.module(module), cls).__members__)


def _values(module: str, cls: str) -> Reader:
    """The values of a string enum, sorted."""
    return lambda vllm: sorted(member.value for member in getattr(vllm.module(module), cls))


def _architectures(vllm: Vllm) -> list[str]:
    registry = vllm.module("vllm.model_executor.models.registry")
    return sorted(registry.ModelRegistry.models)


def _model_types(vllm: Vllm) -> list[str]:
    """What `model_type` of a config.json is known without code from the checkpoint."""
    own = vllm.module("vllm.transformers_utils.config")._CONFIG_REGISTRY
    return sorted({*vllm.module("transformers").CONFIG_MAPPING, *own})


def _in_transformers(vllm: Vllm) -> list[str]:
    """Architectures that vLLM gave up but Transformers has, so that its classes can be wrapped."""
    models, transformers = vllm.module(_MODELS), vllm.module("transformers")
    given_up = {*models._PREVIOUSLY_SUPPORTED_MODELS, *models._OOT_SUPPORTED_MODELS}
    return sorted(name for name in given_up if getattr(transformers, name, None) is not None)


def _hybrid_connectors(vllm: Vllm) -> list[str]:
    """KV connectors whose class is a `SupportsHMA`, read from source: some need more packages."""
    factory = vllm.module(_CONNECTORS).KVConnectorFactory
    return sorted(
        name
        for name, loader in factory._registry.items()
        if _HYBRID in _ancestors(vllm, *_named(loader))
    )


def _named(loader: Callable[[], Any]) -> tuple[str, str]:
    """Give module and class of a lazily registered connector."""
    names = loader.__code__.co_freevars
    cells = dict(zip(names, loader.__closure__ or (), strict=True))
    return cells["module_path"].cell_contents, cells["class_name"].cell_contents


def _ancestors(vllm: Vllm, module: str, cls: str) -> set[str]:
    """Give the names that a class is derived from, followed within its own file or package."""
    path = module.removeprefix("vllm.").replace(".", "/")
    files = vllm.files(f"{path}.py") or vllm.files(f"{path}/*.py")
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for file in files
        for node in ast.walk(vllm.syntax_tree(file))
        if isinstance(node, ast.ClassDef)
    }
    # A second name for a class: `NixlConnector = NixlPullConnector`.
    for file in files:
        for node in vllm.syntax_tree(file).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                names = (target.id for target in node.targets if isinstance(target, ast.Name))
                bases.update({name: [node.value.id] for name in names})
    found: set[str] = set()
    waiting = [cls]
    while waiting:
        for base in bases.get(waiting.pop(), ()):
            if base not in found:
                found.add(base)
                waiting.append(base)
    return found


_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.factory"
_HYBRID = "SupportsHMA"
_QUANTIZATION = "vllm.model_executor.layers.quantization"
_QUANTIZATION_CONFIG = "vllm.config.quantization"
_MODELS = "vllm.model_executor.models.registry"

_READERS: dict[str, Reader] = {
    "tool_parsers": _of_class("vllm.tool_parsers", "ToolParserManager", "list_registered"),
    "reasoning_parsers": _of_class("vllm.reasoning", "ReasoningParserManager", "list_registered"),
    "load_formats": _table("vllm.model_executor.model_loader", "_LOAD_FORMAT_TO_MODEL_LOADER"),
    "quantization_methods": _table(_QUANTIZATION, "QUANTIZATION_METHODS"),
    "deprecated_quantization": _listed(_QUANTIZATION, "DEPRECATED_QUANTIZATION_METHODS"),
    "online_quant_shorthands": _listed(_QUANTIZATION_CONFIG, "ONLINE_QUANT_SHORTHAND_NAMES"),
    "quant_key_names": _listed(_QUANTIZATION_CONFIG, "QUANT_KEY_NAMES"),
    "kv_connectors": _of_class(_CONNECTORS, "KVConnectorFactory", "_registry"),
    "kv_connectors_hybrid": _hybrid_connectors,
    "ec_connectors": _of_class(
        "vllm.distributed.ec_transfer.ec_connector.factory", "ECConnectorFactory", "_registry"
    ),
    "attention_backends": _members("vllm.v1.attention.backends.registry", "AttentionBackendEnum"),
    "config_formats": _table("vllm.transformers_utils.config", "_CONFIG_FORMAT_TO_CONFIG_PARSER"),
    "histogram_bucket_families": _table("vllm.v1.metrics.buckets", "BUCKET_FAMILY_KEYS"),
    "kv_cache_spec_kinds": _values("vllm.v1.kv_cache_interface", "KVCacheSpecKind"),
    "model_archs": _architectures,
    "previously_supported_archs": _mapping(_MODELS, "_PREVIOUSLY_SUPPORTED_MODELS"),
    "given_up_archs_in_transformers": _in_transformers,
    "model_types": _model_types,
    "out_of_tree_archs": _mapping(_MODELS, "_OOT_SUPPORTED_MODELS"),
    "arch_specific_config": _mapping("vllm.model_executor.models.config", "MODELS_CONFIG_MAP"),
    "weight_transfer_backends": _of_class(
        "vllm.distributed.weight_transfer.factory", "WeightTransferEngineFactory", "_registry"
    ),
    "pooling_tasks": _literal("vllm.tasks", "PoolingTask"),
    "tokenizer_modes": _table("vllm.tokenizers.registry", "_VLLM_TOKENIZERS"),
    "max_lora_ranks": _literal("vllm.config.lora", "MaxLoRARanks"),
}
