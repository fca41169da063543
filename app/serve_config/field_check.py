"""Values against the fields of vLLM's configuration classes, as pydantic would judge them.

The classes are pydantic dataclasses that forbid unknown keys. Their types and ranges are in the
catalogue; here pydantic itself applies them, field by field, in its lax mode. What their own
validators do beyond that is for the rules; a field whose `before` validator is not known is
not judged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Union

from pydantic import TypeAdapter, ValidationError

from app.catalogue import Catalogue, ConfigClass, ConfigField
from app.serve_config import absence
from app.serve_config.serve_config import Unresolved
from app.serve_config.suggest import hint, nearest

_MAX_PROBLEMS: Final = 50
_UNEXPECTED: Final = "Unexpected keyword argument"
_SKIP_NONE: Final = "_skip_none_validation"
# `before` validators that look an enum member up by its name, in any case.
_BY_NAME: Final = frozenset(
    {"validate_mode_before", "validate_cudagraph_mode_before", "validate_backend_before"}
    | {"validate_mla_prefill_backend_before", "_parse_attention_backend"}
)
_AUTO_IS_NONE: Final = frozenset({"_parse_attention_backend", "validate_backend_before"})
# `before` validators that fold case and dashes.
_FOLDING: Final = ("_normalize_",)
# `before` validators that split a string at commas and leave all else to the field's type.
_SPLITTING: Final = frozenset({"_to_list_str"})
# `before` validators that refuse no more than the field's type, or only objects that rules judge.
_BUILDING: Final = frozenset({"validate_pass_config_before", "_validate_targets"})
# `before` validators that take a string for a name of their own, which rules judge.
_NAMING: Final = frozenset({"_coerce_spec"})
# `before` validators of objects whose values are enum members by name.
_BY_NAME_VALUES: Final = frozenset({"validate_backend_per_kind_before"})
# Registries that quantisations are named from: of a whole spec, of one target, of one key.
_SHORTHANDS: Final = ("online_quant_shorthands",)
_KEYS: Final = ("quant_key_names",)
_SPECS: Final = (*_SHORTHANDS, *_KEYS)
# Enums whose members' values are paths of classes, which no JSON but a string is.
_NAMED_BY_PATH: Final = frozenset({"AttentionBackendEnum", "MLAPrefillBackendEnum"})
# Classes that a JSON value names; vLLM raises TypeError for what is no string.
_GIVEN_BY_NAME: Final = frozenset({"QuantKey"})


class ProblemKind(StrEnum):
    """What is wrong with a value."""

    UNKNOWN_KEY = "unknown-key"
    TYPE = "invalid-field-value"
    RANGE = "value-out-of-range"


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing that pydantic would refuse; `path` leads to it from the checked value.

    `engine` is the core of pydantic's own message, `nearest` the closest number in range.
    """

    kind: ProblemKind
    path: tuple[str | int, ...]
    message: str
    suggestions: tuple[str, ...] = ()
    engine: str | None = None
    nearest: float | None = None


def check_class(catalogue: Catalogue, name: str, value: Any) -> list[FieldProblem]:
    """Check the keys and values of an object for a configuration class."""
    found: list[FieldProblem] = []
    for problem in _class_problems(catalogue, name, value, ()):
        found.append(problem)
        if len(found) >= _MAX_PROBLEMS:
            break
    return found


def check_field(catalogue: Catalogue, name: str, field: str, value: Any) -> list[FieldProblem]:
    """Check one value for one field of a configuration class; unknown fields are not judged."""
    config_class = catalogue.config_classes.get(name)
    config_field = None if config_class is None else config_class.fields.get(field)
    if config_field is None:
        return []
    return list(_field_problems(catalogue, config_field, value, ()))


def typed_value(field: ConfigField, value: Any) -> Any:
    """Give the value as pydantic would have it; one that cannot be judged stays as it is."""
    validators = [str(entry[0]) for entry in field.validators]
    if _is_open(value) or any(name in _BY_NAME | _NAMING for name in validators):
        automatic = isinstance(value, str) and value.lower() == "auto"
        return None if automatic and _AUTO_IS_NONE & {*validators} else value
    if isinstance(value, str) and any(name.startswith(_FOLDING) for name in validators):
        value = value.lower().replace("-", "_")
    if isinstance(value, str) and any(name in _SPLITTING for name in validators):
        return value.replace(" ", "").split(",")
    if nested_class(field.type) is not None:
        return value
    try:
        typed = _typed(field.type, value)
    except (TypeError, ValueError, RecursionError):
        return value
    return value if isinstance(typed, Enum | Path) else typed


def typed_object(catalogue: Catalogue, name: str, value: Any) -> Any:
    """Give an object for a configuration class with its members as pydantic would have them."""
    config_class = catalogue.config_classes.get(name)
    if config_class is None or not isinstance(value, Mapping):
        return value
    typed: dict[str, Any] = {}
    for key, item in value.items():
        field = config_class.fields.get(key)
        nested = None if field is None else nested_class(field.type)
        if nested is not None and isinstance(item, Mapping):
            typed[key] = typed_object(catalogue, nested, item)
        else:
            typed[key] = item if field is None else typed_value(field, item)
    return typed


def _class_problems(
    catalogue: Catalogue, name: str, value: Any, path: tuple[str | int, ...]
) -> Iterator[FieldProblem]:
    config_class = catalogue.config_classes.get(name)
    if config_class is None or isinstance(value, Unresolved):
        return
    if not isinstance(value, Mapping):
        message = f"must be an object with the keys of {name}, not {_shown(value)}"
        yield FieldProblem(ProblemKind.TYPE, path, message)
        return
    known = _init_names(config_class)
    for key, item in value.items():
        if key in known:
            field = config_class.fields.get(key)
            if field is not None:
                yield from _field_problems(catalogue, field, item, (*path, key))
        elif config_class.extra == "forbid" or not config_class.pydantic:
            names = nearest(str(key), known)
            gone = absence.key(catalogue, name, str(key))
            tail, names = absence.tell(gone, names)
            message = f"{name} has no key {key!r}{tail or _listed(known)}"
            yield FieldProblem(ProblemKind.UNKNOWN_KEY, (*path, key), message, names, _UNEXPECTED)
    for key, field in config_class.fields.items():
        if field.required and field.init and key not in value:
            yield FieldProblem(ProblemKind.TYPE, path, f"{name} needs the key {key!r}")


def _init_names(config_class: ConfigClass) -> tuple[str, ...]:
    names = [name for name, field in config_class.fields.items() if field.init]
    return (*names, *config_class.initvars)


def _field_problems(
    catalogue: Catalogue, field: ConfigField, value: Any, path: tuple[str | int, ...]
) -> Iterator[FieldProblem]:
    if _is_open(value):
        return
    names = {str(entry[0]): str(entry[1]) for entry in field.validators}
    if value is None and _SKIP_NONE in names:
        return
    before = [n for n, mode in names.items() if mode in {"before", "plain", "wrap"}]
    before = [n for n in before if n != _SKIP_NONE]
    if before:
        if all(n in _BY_NAME for n in before):
            yield from _named_member(field, value, path)
            return
        if all(n.startswith(_FOLDING) for n in before):
            value = value.lower().replace("-", "_") if isinstance(value, str) else value
        elif all(n in _SPLITTING | _NAMING for n in before):
            if isinstance(value, str):
                if before[0] in _NAMING:
                    yield from _unknown_names(catalogue, {"": value}, _SPECS, path)
                return
        elif all(n in _BY_NAME_VALUES for n in before):
            if isinstance(value, Mapping):
                yield from _named_values(catalogue, field, value, path)
                return
        elif not all(n in _BUILDING for n in before):
            return
    if "_validate_targets" in before and isinstance(value, Mapping):
        yield from _unknown_names(catalogue, value, _SHORTHANDS, path)
    elif isinstance(value, str) and _is_given_by_name(field):
        yield from _unknown_names(catalogue, {"": value}, _KEYS, path)
    nested = nested_class(field.type)
    optional = any(t.get("t") == "none" for t in _flat(field.type))
    if nested is not None and not (value is None and optional):
        yield from _class_problems(catalogue, nested, value, path)
        return
    try:
        typed = _typed(field.type, value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = tuple(step for step in first["loc"] if isinstance(step, int))
        message = f"must be {describe(field.type)}, not {_shown(value)}"
        near = _near_literal(field, value)
        yield FieldProblem(ProblemKind.TYPE, (*path, *where), message, near, first["msg"])
        return
    except (TypeError, ValueError, RecursionError):
        return
    yield from _range_problems(field, typed, path)


def _range_problems(
    field: ConfigField, value: Any, path: tuple[str | int, ...]
) -> Iterator[FieldProblem]:
    for name, (holds, words, engine) in _BOUNDS.items():
        bound = field.constraints.get(name)
        subject: Any = value
        if name in {"min_length", "max_length"}:
            subject = len(value) if hasattr(value, "__len__") else None
        if bound is None or isinstance(subject, bool) or not isinstance(subject, int | float):
            continue
        if not holds(subject, bound):
            message = f"must be {words} {bound}, not {value!r}"
            said = None if engine is None else f"Input should be {engine} {bound}"
            nearest = _nearest(name, bound, value)
            yield FieldProblem(ProblemKind.RANGE, path, message, engine=said, nearest=nearest)
            return


def _nearest(name: str, bound: float, value: Any) -> float | None:
    """Give the closest number that a bound allows; none where there is no closest one."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if name in {"ge", "le"}:
        return bound
    if name in {"gt", "lt"} and isinstance(value, int) and isinstance(bound, int):
        return bound + 1 if name == "gt" else bound - 1
    return None


# In the order in which pydantic looks at them; it tells the first that fails.
_BOUNDS: Final[dict[str, tuple[Callable[[Any, Any], bool], str, str | None]]] = {
    "multiple_of": (lambda value, bound: value % bound == 0, "a multiple of", "a multiple of"),
    "le": (lambda value, bound: value <= bound, "at most", "less than or equal to"),
    "lt": (lambda value, bound: value < bound, "less than", "less than"),
    "ge": (lambda value, bound: value >= bound, "at least", "greater than or equal to"),
    "gt": (lambda value, bound: value > bound, "greater than", "greater than"),
    "min_length": (lambda value, bound: value >= bound, "of length at least", None),
    "max_length": (lambda value, bound: value <= bound, "of length at most", None),
}


def _named_member(
    field: ConfigField, value: Any, path: tuple[str | int, ...]
) -> Iterator[FieldProblem]:
    """Check an enum that a validator looks up by name, in any case; or that is given by value."""
    enum = next((t for t in _flat(field.type) if t.get("t") == "enum"), None)
    optional = any(t.get("t") == "none" for t in _flat(field.type))
    if enum is None or (value is None and optional):
        return
    members: list[str] = enum["members"]
    if isinstance(value, str):
        if value.upper() in members or (value.lower() == "auto" and optional):
            return
    elif (
        enum.get("name") not in _NAMED_BY_PATH
        and not isinstance(value, list | dict)
        and value in (enum.get("values") or [value])
    ):
        return  # a member's value, where those are known
    names = nearest(value, members) if isinstance(value, str) else ()
    message = f"must be one of {', '.join(members)}, not {_shown(value)}{hint(names)}"
    yield FieldProblem(ProblemKind.TYPE, path, message, names)


def _is_given_by_name(field: ConfigField) -> bool:
    return "annotated" in field.type and any(
        part.get("name") in _GIVEN_BY_NAME for part in _flat(field.type)
    )


def _unknown_names(
    catalogue: Catalogue,
    values: Mapping[str, Any],
    registries: tuple[str, ...],
    path: tuple[str | int, ...],
) -> Iterator[FieldProblem]:
    """Check names of quantisations; of none of them if this version's are not known."""
    lists = [catalogue.registries.get(registry) for registry in registries]
    known = [name for names in lists for name in names or () if name != "online"]
    if not all(lists):
        return
    for key, name in values.items():
        if isinstance(name, str) and name not in known:
            near = nearest(name, known)
            message = f"{name!r} is no quantisation of this version{hint(near)}"
            where = (*path, key) if key else path
            yield FieldProblem(ProblemKind.TYPE, where, message, near)


def _named_values(
    catalogue: Catalogue, field: ConfigField, value: Mapping[str, Any], path: tuple[str | int, ...]
) -> Iterator[FieldProblem]:
    """Check an object whose keys are kinds of KV cache and whose values are named."""
    members = next(t for t in _flat(field.type) if t.get("t") == "dict")["of"]
    kinds = catalogue.registries.get("kv_cache_spec_kinds") or ()
    for key, item in value.items():
        if kinds and key not in kinds:
            names = nearest(str(key), kinds)
            message = f"{key!r} is no kind of KV cache{hint(names) or _listed(tuple(kinds))}"
            yield FieldProblem(ProblemKind.UNKNOWN_KEY, (*path, key), message, names)
        yield from _named_member(ConfigField(type=members[-1]), item, (*path, key))


def _near_literal(field: ConfigField, value: Any) -> tuple[str, ...]:
    if not isinstance(value, str):
        return ()
    known = [
        str(choice)
        for part in _flat(field.type)
        for choice in (part.get("values") or ())
        if isinstance(choice, str)
    ]
    return nearest(value, known)


def nested_class(type_tree: Mapping[str, Any]) -> str | None:
    """Give the one configuration class that an object for this type must be."""
    if "annotated" in type_tree:
        return None
    parts = [t for t in _flat(type_tree) if t.get("t") != "none"]
    if len(parts) == 1 and parts[0].get("t") == "dataclass" and "annotated" not in parts[0]:
        return str(parts[0]["name"])
    return None


def _flat(type_tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if type_tree.get("t") == "union":
        return [part for member in type_tree["of"] for part in _flat(member)]
    return [type_tree]


def _is_open(value: Any) -> bool:
    if isinstance(value, Unresolved):
        return True
    if isinstance(value, Mapping):
        return any(_is_open(item) for item in value.values())
    return isinstance(value, list) and any(_is_open(item) for item in value)


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(known: tuple[str, ...]) -> str:
    names = ", ".join(known[:12])
    return f"; it has {names}{', …' if len(known) > 12 else ''}"


def describe(type_tree: Mapping[str, Any]) -> str:
    """Say a type in words."""
    words = []
    for part in _flat(type_tree):
        kind = str(part.get("t"))
        if kind == "literal":
            words.append("one of " + ", ".join(json.dumps(v) for v in part["values"]))
        elif kind == "enum":
            words.append("one of " + ", ".join(part["members"]))
        elif kind == "list" and part.get("of"):
            words.append(f"a list of {describe(_only(part['of']))}")
        elif kind == "dataclass":
            words.append(f"an object ({part.get('name')})")
        else:
            words.append(_WORDS.get(kind, kind))
    return " or ".join(dict.fromkeys(words))


_WORDS: Final = {
    "none": "null",
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "an object",
}


def _only(members: Any) -> Mapping[str, Any]:
    if isinstance(members, list):
        return members[0] if members else {"t": "any"}
    return members if isinstance(members, Mapping) else {"t": "any"}


class _ByIdentity:
    """A type tree as a cache key: equal only to itself, so that nothing is compared."""

    __slots__ = ("tree",)

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.tree = tree

    def __hash__(self) -> int:
        return id(self.tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.tree is self.tree


def _typed(tree: Mapping[str, Any], value: Any) -> Any:
    """Give the value as pydantic reads it from JSON.

    Raises:
        ValidationError: it is not of the type.
    """
    plain, adapter = _reader_of(_ByIdentity(tree))
    if type(value) in plain:  # as it is; pydantic would be asked to no other end
        return value
    return adapter.validate_json(json.dumps(value))


@lru_cache(maxsize=8192)
def _reader_of(tree: _ByIdentity) -> tuple[frozenset[type], TypeAdapter[Any]]:
    """Give the types of values that a type takes unchanged, and what reads all others."""
    kinds = {str(part.get("t")) for part in _flat(tree.tree)}
    plain = {type_ for kind, type_ in _UNCHANGED.items() if kind in kinds}
    return frozenset(plain), _adapter_for(json.dumps(tree.tree, sort_keys=True))


@lru_cache(maxsize=1024)
def _adapter_for(type_text: str) -> TypeAdapter[Any]:
    return TypeAdapter(_python_type(json.loads(type_text)))


def _python_type(tree: Any) -> Any:
    """Give the Python type for the extractor's type tree; Any for what cannot be judged."""
    if not isinstance(tree, Mapping):
        return Any
    if tree.get("annotated"):
        names = {str(part.get("name")) for part in _flat(tree)}
        return str | None if names & _GIVEN_BY_NAME else Any
    kind, members = tree.get("t"), tree.get("of")
    if kind == "union":
        parts = [_python_type(member) for member in members or ()]
        return Union[tuple(parts)] if parts else Any  # noqa: UP007 - built at run time
    if kind == "literal":
        return Literal[tuple(tree["values"])]
    if kind == "enum":
        values = tree.get("values")
        if not values:
            return Any
        choices = dict(zip(tree["members"], values, strict=False))
        if all(type(choice) is int for choice in values):
            return IntEnum("Choice", choices)
        return Enum("Choice", choices)
    if kind in {"list", "set"}:
        return list[_python_type(_only(members))]  # type: ignore[misc] # built at run time
    if kind == "tuple" and isinstance(members, list) and members:
        return tuple[tuple(_python_type(member) for member in members)]  # type: ignore[misc] # built at run time
    if kind == "dict" and isinstance(members, list) and len(members) == 2:
        key, value = (_python_type(member) for member in members)
        return dict[key, value]  # type: ignore[valid-type] # built at run time
    if kind == "class" and tree.get("name") in {"pathlib.Path", "Path"}:
        return Path
    return _PLAIN.get(str(kind), Any)


_UNCHANGED: Final[dict[str, type]] = {"bool": bool, "int": int, "str": str}
_PLAIN: Final[dict[str, Any]] = {
    "none": type(None),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "dict": dict[Any, Any],
    "list": list[Any],
    "callable": Callable[..., Any],
}
