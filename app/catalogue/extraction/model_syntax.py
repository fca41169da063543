"""What the source of a model class says of it, without importing it.

For classes that cannot be imported where the extractor runs, and for how pooling models pool.
A class has an ability if it, or a class it inherits from, sets the attribute that the predicates
of `model_executor/models/interfaces.py` ask for.

Source: `model_executor/models/registry.py`, `interfaces.py`, `interfaces_base.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Abilities of which an attribute says all: the source agrees with every class that was imported
# (391 of 0.32.0). Pipeline stages, adapters and pooling also look at signatures and at what
# adapters make of a class.
ABILITIES = (
    *("has_inner_state", "has_noops", "is_attention_free", "is_hybrid"),
    *("supports_mrope", "supports_multimodal", "supports_multimodal_pruning"),
    *("supports_multimodal_raw_input_only", "supports_replayssm"),
    *("supports_mamba_prefix_caching", "supports_transcription", "supports_hc_sp"),
)
REGISTRY = "model_executor/models/registry.py"
_MODELS = "model_executor.models"
_DECORATORS = {
    "attn_type": ("attn_type",),
    "default_pooling_type": ("default_seq_pooling_type", "default_tok_pooling_type"),
}
_POOLING = {
    "default_seq_pooling_type": "LAST",
    "default_tok_pooling_type": "ALL",
    "attn_type": "decoder",
}

Tree = Callable[[str], ast.Module | None]
Attributes = dict[str, Any]


@dataclass(frozen=True)
class _Module:
    """The classes of a file, and where its other names come from."""

    classes: dict[str, ast.ClassDef]
    imported: dict[str, tuple[str, str]]


@dataclass
class ModelSources:
    """Reads model files on demand; `tree` gives a file of the package, or None."""

    tree: Tree
    _modules: dict[str, _Module | None] = field(default_factory=dict)
    _attributes: dict[tuple[str, str], Attributes] = field(default_factory=dict)

    def attributes(self, module: str, name: str) -> Attributes:
        """Give the class attributes that are literals, those of bases included.

        `module` is dotted, without the package's own name.
        """
        key = (module, name)
        if key not in self._attributes:
            self._attributes[key] = {}  # where classes inherit in a circle
            self._attributes[key] = self._read(module, name)
        return self._attributes[key]

    def _read(self, module: str, name: str) -> Attributes:
        read = self._module(module)
        if read is None:
            return {}
        node = read.classes.get(name)
        if node is None:
            return self.attributes(*read.imported[name]) if name in read.imported else {}
        found: Attributes = {}
        for base in reversed(node.bases):
            inner = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(inner, ast.Name):
                found |= self.attributes(module, inner.id)
        found |= dict(_literals(node))
        for decorator in node.decorator_list:
            found |= _decorated(decorator)
        return found

    def _module(self, module: str) -> _Module | None:
        if module not in self._modules:
            path = module.replace(".", "/")
            package = self.tree(f"{path}/__init__.py")
            tree = package or self.tree(f"{path}.py")
            self._modules[module] = None if tree is None else _indexed(module, tree, package)
        return self._modules[module]


def _indexed(module: str, tree: ast.Module, package: ast.Module | None) -> _Module:
    inside = module.split(".") if package is not None else module.split(".")[:-1]
    classes: dict[str, ast.ClassDef] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)
        elif isinstance(node, ast.ImportFrom):
            origin = (node.module or "").removeprefix("vllm.")
            if node.level:
                outer = inside[: len(inside) - (node.level - 1)]
                origin = ".".join([*outer, *([node.module] if node.module else [])])
            for alias in node.names:
                imported.setdefault(alias.asname or alias.name, (origin, alias.name))
    return _Module(classes, imported)


def registered(registry: ast.Module) -> dict[str, tuple[str, str]]:
    """Give by architecture the module (dotted) and class that the registry's tables name."""
    found = {}
    for node in ast.walk(registry):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                names = _strings(value)
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and names:
                    module, name = names
                    dotted = module.removeprefix("vllm.")
                    inside = dotted if dotted != module else f"{_MODELS}.{module}"
                    found[key.value] = (inside, name)
    return found


def with_source(
    abilities: dict[str, list[str]],
    sources: ModelSources,
    models: Mapping[str, tuple[str, str]],
) -> dict[str, list[str]]:
    """Add what the source says of the architectures that could not be inspected.

    `read_in_source` names the abilities that are then known of all.
    """
    known = {name: set(those) for name, those in abilities.items()}
    readable = [ability for ability in ABILITIES if ability in abilities]
    for architecture in abilities.get("not_inspected", ()):
        attributes = sources.attributes(*models[architecture]) if architecture in models else {}
        for ability in readable:
            if attributes.get(ability) is True:
                known[ability].add(architecture)
    return {name: sorted(those) for name, those in known.items()} | {"read_in_source": readable}


def pooling_facts(
    sources: ModelSources, models: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, str]]:
    """Give by architecture how it pools and attends, where that is not the default."""
    found = {}
    for architecture, (module, name) in models.items():
        attributes = sources.attributes(module, name)
        own = {
            key: value
            for key, default in _POOLING.items()
            if isinstance(value := attributes.get(key), str) and value != default
        }
        if own:
            found[architecture] = own
    return found


def _literals(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for statement in node.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                yield target.id, value.value


def _decorated(decorator: ast.expr) -> Attributes:
    if not isinstance(decorator, ast.Call) or not isinstance(decorator.func, ast.Name):
        return {}
    names = _DECORATORS.get(decorator.func.id)
    if names is None:
        return {}
    if decorator.func.id == "attn_type":
        return {"attn_type": getattr(decorator.args[0], "value", None)} if decorator.args else {}
    found: Attributes = {name: _POOLING[name] for name in names}
    for keyword in decorator.keywords:
        if isinstance(keyword.value, ast.Constant):
            found[f"default_{keyword.arg}"] = keyword.value.value
    return found


def _strings(node: ast.expr) -> tuple[str, str] | None:
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:
        values = [getattr(element, "value", None) for element in node.elts]
        if all(isinstance(value, str) for value in values):
            return str(values[0]), str(values[1])
    return None
