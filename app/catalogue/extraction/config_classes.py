"""The configuration dataclasses: fields, types, defaults and declared constraints.

What validators and `__post_init__` do is code; only that they exist is recorded.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterable
from typing import Any

from app.catalogue.extraction.annotations import dataclasses_in, type_fact
from app.catalogue.extraction.installed import Vllm
from app.catalogue.extraction.values import as_fact

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def config_class_facts(vllm: Vllm, roots: Iterable[type]) -> dict[str, dict[str, Any]]:
    """Give every dataclass of vLLM reachable from `vllm.config` and `roots`, by name."""
    config = vllm.module("vllm.config")
    exported = (getattr(config, name) for name in config.__all__)
    pending = [*(cls for cls in exported if _is_dataclass(cls)), *roots]
    names = _config_names()
    facts: dict[str, dict[str, Any]] = {}
    while pending:
        cls = pending.pop(0)
        if cls.__name__ in facts or not cls.__module__.startswith("vllm."):
            continue
        hints = _hints(vllm, cls, names)
        facts[cls.__name__] = class_fact(cls, hints)
        pending.extend(found for hint in hints.values() for found in dataclasses_in(hint))
    return dict(sorted(facts.items()))


def class_fact(cls: Any, hints: dict[str, Any]) -> dict[str, Any]:
    """Give the fact of one dataclass; see `catalogue.ConfigClass`."""
    validators = _validators(cls)
    fact: dict[str, Any] = {"module": cls.__module__}
    if hasattr(cls, "__pydantic_fields__"):
        fact["pydantic"] = True
    if extra := dict(getattr(cls, "__pydantic_config__", None) or {}).get("extra"):
        fact["extra"] = extra
    if hasattr(cls, "__post_init__"):
        fact["post_init"] = True
    decorators = getattr(cls, "__pydantic_decorators__", None)
    if decorators is not None and decorators.model_validators:
        fact["model_validators"] = [
            [name, decorator.info.mode] for name, decorator in decorators.model_validators.items()
        ]
    initvars = {
        name: type_fact(hint)
        for name, hint in hints.items()
        if isinstance(hint, dataclasses.InitVar)
    }
    if initvars:
        fact["initvars"] = initvars
    fact["fields"] = {
        field.name: _field_fact(cls, field, hints.get(field.name, field.type), validators)
        for field in dataclasses.fields(cls)
    }
    return fact


def _field_fact(
    cls: Any, field: dataclasses.Field[Any], hint: Any, validators: dict[str, list[list[str]]]
) -> dict[str, Any]:
    fact: dict[str, Any] = {"type": type_fact(hint)}
    declared = getattr(cls, "__pydantic_fields__", {}).get(field.name)
    if constraints := _constraints(declared):
        fact["constraints"] = constraints
    fact.update(_default(field))
    if found := validators.get(field.name):
        fact["validators"] = found
    if not field.init:
        fact["init"] = False
    return fact


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    default, factory = field.default, field.default_factory
    if type(default).__name__ == "FieldInfo":  # pydantic's Field(...) as a dataclass default
        info: Any = default
        factory = info.default_factory or dataclasses.MISSING
        default = dataclasses.MISSING if info.is_required() else info.default
    if factory is not dataclasses.MISSING:
        made = _made(factory)
        fact = {} if made is None else {"default": made}
        return {**fact, "default_from_factory": True}
    if default is dataclasses.MISSING:
        return {"required": True}
    return {} if default is None else {"default": as_fact(default)}


def _made(factory: Any) -> Any:
    if isinstance(factory, type) and dataclasses.is_dataclass(factory):
        return {"$dataclass": factory.__name__}
    return as_fact(factory())


def _constraints(declared: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in getattr(declared, "metadata", ()):
        for name in _CONSTRAINTS:
            value = getattr(item, name, None)
            if value is not None:
                found[name] = as_fact(value)
    return found


def _validators(cls: Any) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    decorators = getattr(cls, "__pydantic_decorators__", None)
    if decorators is None:
        return found
    for name, decorator in decorators.field_validators.items():
        named = decorator.info.fields
        for field in cls.__pydantic_fields__ if "*" in named else named:
            found.setdefault(field, []).append([name, decorator.info.mode])
    return found


def _config_names() -> dict[str, Any]:
    """Give the classes of vLLM's configuration by name: annotations use them unimported."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("vllm.config.")]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if _is_dataclass(value) and value.__module__ == module.__name__
    }


def _hints(vllm: Vllm, cls: type, names: dict[str, Any]) -> dict[str, Any]:
    """Resolve the annotations; those that name what only type checkers import stay text."""
    try:
        return typing.get_type_hints(cls, localns=names, include_extras=True)
    except Exception as error:  # an annotation is any expression
        vllm.note_failure(f"type hints of {cls.__name__}", error)
    namespace = {**names, **vars(sys.modules[cls.__module__])}
    hints = {}
    for name, hint in inspect.get_annotations(cls).items():
        hints[name] = hint
        if isinstance(hint, str):
            try:
                hints[name] = eval(hint, namespace)  # noqa: S307 - vLLM's own annotation
            except Exception:
                hints[name] = hint  # already noted, once for the class
    return hints


def _is_dataclass(value: Any) -> bool:
    return isinstance(value, type) and dataclasses.is_dataclass(value)
