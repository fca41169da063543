"""What vLLM decides about a model by its `model_type`, read from syntax trees.

Sources: `transformers_utils/model_arch_config_convertor.py` (`is_deepseek_mla`, the table of
convertors), `config/model.py` (`_FLOAT16_NOT_SUPPORTED_MODELS`, `_get_and_verify_max_len`,
`ModelConfig.use_mla`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from app.catalogue.extraction.syntax import functions, string_collection


def model_facts(convertor: ast.Module, model: ast.Module) -> dict[str, Any]:
    """Give the members of `app.catalogue.catalogue.ModelFacts`, but for default classes."""
    return {
        "mla_model_types": _mla_model_types(convertor),
        "mla_needs_causal": _mentions(functions(model).get("use_mla"), "is_causal"),
        "mm_prefix_model_types": _mm_prefix_model_types(convertor),
        "float16_refused": sorted(_keys(model, "_FLOAT16_NOT_SUPPORTED_MODELS")),
        "scaled_rope_types": sorted(_compared(model, "_get_and_verify_max_len", "rope_type")),
        "convertors": _convertors(convertor),
    }


def _mla_model_types(convertor: ast.Module) -> list[str]:
    """Give the first, long list that the model type is compared with."""
    function = functions(convertor).get("is_deepseek_mla")
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Compare):
            names = string_collection(node.comparators[0])
            if names:
                return sorted(names)
    return []


def _mm_prefix_model_types(convertor: ast.Module) -> list[str]:
    function = functions(convertor).get("is_mm_prefix_lm")
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign) and (names := string_collection(node.value)):
            return sorted(names)
    return []


def _convertors(convertor: ast.Module) -> dict[str, list[str]]:
    """Give by model type the methods that its convertor redefines."""
    methods = {
        node.name: sorted(f.name for f in node.body if isinstance(f, ast.FunctionDef))
        for node in ast.walk(convertor)
        if isinstance(node, ast.ClassDef)
    }
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for node in ast.walk(convertor)
        if isinstance(node, ast.ClassDef)
    }
    found = {}
    for key, value in _items(convertor, "MODEL_ARCH_CONFIG_CONVERTORS"):
        if isinstance(value, ast.Name):
            own = set(methods.get(value.id, ()))
            for base in bases.get(value.id, ()):
                if base != "ModelArchConfigConvertorBase":
                    own.update(methods.get(base, ()))
            found[key] = sorted(own)
    return dict(sorted(found.items()))


def _keys(module: ast.Module, table: str) -> list[str]:
    return [key for key, _ in _items(module, table)]


def _items(module: ast.Module, table: str) -> Iterator[tuple[str, ast.expr]]:
    for statement in module.body:
        value = getattr(statement, "value", None)
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        named = any(isinstance(t, ast.Name) and t.id == table for t in targets)
        if named and isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, item


def _compared(module: ast.Module, function: str, name: str) -> list[str]:
    """Give the texts that `name` is compared with by `not in`."""
    found = functions(module).get(function)
    for node in ast.walk(found) if found is not None else ():
        if (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.Name)
            and node.left.id == name
            and isinstance(node.ops[0], ast.NotIn)
        ):
            return string_collection(node.comparators[0]) or []
    return []


def _mentions(function: ast.AST | None, text: str) -> bool:
    nodes = ast.walk(function) if function is not None else ()
    return any(isinstance(node, ast.Constant) and node.value == text for node in nodes)
