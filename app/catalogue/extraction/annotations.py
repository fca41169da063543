"""Type annotations as trees.

A node is `{"t": kind, …}`: `str`, `int`, `float`, `bool`, `none`, `any`, `callable`; `literal` with
`values`; `union`, `list`, `set`, `tuple`, `dict`, `type`, `initvar` with `of`; `enum` with `name`,
`members` and, where they are plain, `values`; `dataclass`, `class` and `forward` with `name`.
`annotated` lists what `Annotated` adds, such as `SkipValidation`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

_PLAIN = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "none",
    Any: "any",
    collections.abc.Callable: "callable",
}
_GENERIC: dict[Any, str] = {list: "list", set: "set", tuple: "tuple", dict: "dict", type: "type"}


def type_fact(hint: Any) -> dict[str, Any]:
    """Give the tree of an annotation."""
    if type(hint).__name__ == "TypeAliasType":
        return type_fact(hint.__value__)
    if isinstance(hint, str | typing.ForwardRef):
        return {"t": "forward", "name": hint if isinstance(hint, str) else hint.__forward_arg__}
    if isinstance(hint, dataclasses.InitVar):
        return {"t": "initvar", "of": type_fact(hint.type)}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return _annotated(arguments)
    if origin is Literal:
        return {"t": "literal", "values": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"t": "union", "of": _flat_union(arguments)}
    if origin is collections.abc.Callable:
        return {"t": "callable"}
    if kind := _GENERIC.get(origin or hint):
        of = [type_fact(a) for a in arguments if a is not Ellipsis]
        return {"t": kind, "of": of} if of else {"t": kind}
    if isinstance(hint, typing.Hashable) and hint in _PLAIN:
        return {"t": _PLAIN[hint]}
    return _class_fact(hint, origin)


def dataclasses_in(hint: Any) -> list[type]:
    """Give the dataclasses that an annotation names, at any depth."""
    if isinstance(hint, dataclasses.InitVar):
        return dataclasses_in(hint.type)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [cls for argument in get_args(hint) for cls in dataclasses_in(argument)]


def _annotated(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Constraints are facts of the field; other markers (`SkipValidation`) stay with the type."""
    fact = type_fact(arguments[0])
    markers = [type(a).__name__ if not isinstance(a, type) else a.__name__ for a in arguments[1:]]
    markers = [name for name in markers if name != "FieldInfo"]
    return {**fact, "annotated": [{"$meta": name} for name in markers]} if markers else fact


def _flat_union(arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    members: list[dict[str, Any]] = []
    for fact in map(type_fact, arguments):
        members.extend(fact["of"] if fact["t"] == "union" else [fact])
    return members


def _class_fact(hint: Any, origin: Any) -> dict[str, Any]:
    if isinstance(hint, type) and origin is None:
        if issubclass(hint, enum.Enum):
            values = [member.value for member in hint]
            fact: dict[str, Any] = {"t": "enum", "name": hint.__name__}
            fact["members"] = [member.name for member in hint]
            if all(_is_plain(value) for value in values):
                fact["values"] = values
            return fact
        if dataclasses.is_dataclass(hint):
            return {"t": "dataclass", "name": hint.__name__}
        return {"t": "class", "name": f"{hint.__module__}.{hint.__qualname__}"}
    if isinstance(origin, type):
        return {"t": "class", "name": f"{origin.__module__}.{origin.__qualname__}"}
    return {"t": "other", "name": str(hint)}


def _is_plain(value: object) -> bool:
    """Whether a user could write an enum's value: a number or a word, not the path of a class."""
    return isinstance(value, int) or (isinstance(value, str) and value.isidentifier())
