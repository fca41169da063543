"""What a request may hold: the fields of each generating route, and the limits of the engine.

All of it is read from syntax trees. Routes are those of the `api_router.py` files; a route's
fields are those of the class that its handler takes, its base classes included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Protocol

from app.catalogue.extraction.syntax import FunctionNode, functions

ROUTES = (
    "/inference/v1/generate",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
)
_LIMITS = {
    "sampling_params.py": ("MAX_LOGPROB_TOKEN_IDS",),
    "v1/worker/gpu/sample/logit_bias.py": (
        "MAX_NUM_ALLOWED_TOKEN_IDS",
        "MAX_NUM_LOGIT_BIAS_TOKENS",
        "MAX_NUM_STOP_TOKEN_IDS",
    ),
}


class Source(Protocol):
    """vLLM's files, by their path in the package."""

    def files(self, pattern: str) -> list[str]:
        """Give the files that match a glob pattern, sorted."""

    def syntax_tree(self, relative: str) -> ast.Module:
        """Parse one; empty if there is none."""

    def note(self, text: str) -> None:
        """Record what could not be captured."""


def request_facts(source: Source) -> dict[str, Any]:
    """Give the section `requests`; see `app.catalogue.catalogue.RequestFacts`."""
    routes = dict(_routes(source))
    for route in ROUTES:
        if route not in routes:
            source.note(f"request fields of {route}")
    sampling = source.syntax_tree("sampling_params.py")
    tokenize = functions(source.syntax_tree("renderers/params.py")).get("max_input_tokens")
    return {
        "routes": {route: routes[route] for route in ROUTES if route in routes},
        "sampling_params": _fields_of("SamplingParams", "sampling_params.py", source),
        "limits": {
            name: value
            for file, names in _LIMITS.items()
            for name, value in _constants(source.syntax_tree(file), names)
        },
        "checks": _calls(functions(sampling).get("verify")),
        "output_is_reserved": None if tokenize is None else _subtracts(tokenize),
    }


def _routes(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in source.files("entrypoints/**/api_router.py"):
        tree = source.syntax_tree(file)
        for handler in ast.walk(tree):
            if not isinstance(handler, FunctionNode):
                continue
            for route in _served(handler):
                model = _body_model(handler)
                found = None if model is None else _home(model, file, tree, source)
                if route in ROUTES and found is not None:
                    yield route, _fields_of(*found, source)


def _served(handler: FunctionNode) -> Iterator[str]:
    """Give the routes of `@router.post("/v1/…")`."""
    for decorator in handler.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Attribute)
            and decorator.func.attr == "post"
            and decorator.args
            and isinstance(decorator.args[0], ast.Constant)
        ):
            yield str(decorator.args[0].value)


def _body_model(handler: FunctionNode) -> str | None:
    for argument in handler.args.args:
        if argument.arg == "request" and isinstance(argument.annotation, ast.Name):
            return argument.annotation.id
    return None


def _home(name: str, file: str, tree: ast.Module, source: Source) -> tuple[str, str] | None:
    """Find the class `name` as `file` sees it: its own name and the file that defines it."""
    if any(isinstance(n, ast.ClassDef) and n.name == name for n in tree.body):
        return name, file
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) != name:
                continue
            for target in _module_files(node, file):
                imported = source.syntax_tree(target) if source.files(target) else None
                if imported is not None:
                    return _home(alias.name, target, imported, source)
    return None


def _module_files(node: ast.ImportFrom, file: str) -> tuple[str, ...]:
    if node.level:
        parent = PurePosixPath(file)
        for _ in range(node.level):
            parent = parent.parent
        path = str(parent / (node.module or "").replace(".", "/"))
    elif (node.module or "").startswith("vllm."):
        path = (node.module or "").removeprefix("vllm.").replace(".", "/")
    else:
        return ()
    return f"{path}.py", f"{path}/__init__.py"


def _fields_of(name: str, file: str, source: Source) -> dict[str, Any]:
    """Give the public fields of a class, inherited ones first, and the defaults that are plain."""
    fields: dict[str, None] = {}
    defaults: dict[str, Any] = {}
    tree = source.syntax_tree(file)
    node = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)
    for base in [] if node is None else node.bases:
        found = _home(base.id, file, tree, source) if isinstance(base, ast.Name) else None
        if found is not None and found != (name, file):
            inherited = _fields_of(*found, source)
            fields |= dict.fromkeys(inherited["fields"])
            defaults |= inherited["defaults"]
    for statement in [] if node is None else node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        field = statement.target.id
        if field.startswith("_") or "ClassVar" in ast.dump(statement.annotation):
            continue
        fields[_alias(statement.value) or field] = None
        known, default = _default(statement.value)
        if known:
            defaults[field] = default
        else:
            defaults.pop(field, None)
    return {"model": name, "fields": list(fields), "defaults": defaults}


def _default(value: ast.expr | None) -> tuple[bool, Any]:
    """Give whether a field has a plain default other than null, and which."""
    if isinstance(value, ast.Call) and _is_field(value):
        value = value.args[0] if value.args else _keyword(value, "default")
    if isinstance(value, ast.Constant) and isinstance(value.value, bool | int | float | str):
        return True, value.value
    return False, None


def _alias(value: ast.expr | None) -> str | None:
    if isinstance(value, ast.Call) and _is_field(value):
        alias = _keyword(value, "alias")
        if isinstance(alias, ast.Constant) and isinstance(alias.value, str):
            return alias.value
    return None


def _is_field(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "Field"


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def _constants(tree: ast.Module, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
            if name in names and isinstance(value, ast.Constant) and type(value.value) is int:
                yield name, value.value


def _calls(function: FunctionNode | None) -> list[str]:
    """Give the methods of `self` that a function calls, in order."""
    return [
        node.func.attr
        for node in ([] if function is None else ast.walk(function))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    ]


def _subtracts(function: FunctionNode) -> bool:
    """Whether a function gives a difference: the requested output is kept free of the prompt."""
    return any(
        isinstance(node, ast.Return)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, ast.Sub)
        for node in ast.walk(function)
    )
