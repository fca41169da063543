"""The variables of `vllm/envs.py`, read from its syntax tree.

Each is a function of no arguments that reads `os.environ`. How it parses the text is told by
the outermost conversion in its body, or by the helper that made it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from app.catalogue.extraction.syntax import FunctionNode, functions

_MAKERS = {
    "env_with_choices": "choice",
    "env_list_with_choices": "choice_list",
    "env_set_with_choices": "choice_set",
}
_HELPERS = {
    "maybe_convert_bool": "int_bool",
    "maybe_convert_int": "int",
    "maybe_convert_json_str_or_file": "json_or_file",
}
_STRICT = frozenset(
    {"int_bool", "int", "float", "port_int", "json_or_file", "choice", "choice_list", "choice_set"}
)


def environment_facts(envs: ast.Module) -> dict[str, dict[str, Any]]:
    """Give the fact of every variable by name; see `catalogue.EnvironmentFact`.

    A body whose parsing has no known form gets `parse` "unknown".
    """
    known = functions(envs)
    facts = {}
    for key, value in _table(envs):
        fact = _fact(str(key.value), value, known)
        fact["strict"] = fact["parse"] in _STRICT
        facts[str(key.value)] = fact
    return facts


def _table(envs: ast.Module) -> Iterator[tuple[ast.Constant, ast.expr]]:
    for node in ast.walk(envs):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        named = any(isinstance(t, ast.Name) and t.id == "environment_variables" for t in targets)
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if named and isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield key, item


def _fact(name: str, value: ast.expr, known: dict[str, FunctionNode]) -> dict[str, Any]:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        maker = value.func.id
        if maker in _MAKERS:
            return _choices(_MAKERS[maker], value)
        if maker == "get_env_or_set_default":
            return {"parse": "str", "default": {"$generated": True}}
    body = _body(value, known)
    if body is None:
        return {"parse": "unknown"}
    reads = list(_reads(body))
    parse = _parse(body, name)
    fact: dict[str, Any] = {"parse": parse}
    if parse == "str":
        fact.update({case: True for case in ("lower", "upper") if _calls(body, case)})
    others = [read for read, _ in reads if read != name]
    if others and not isinstance(body, ast.Module):
        fact["also_reads"] = others[0]
    default = next((default for read, default in reads if read == name), None)
    # `get_vllm_port` gives None, not its getter's default, where the variable is unset.
    if isinstance(default, ast.Constant) and default.value is not None and parse != "port_int":
        fact["default"] = default.value
    return fact


def _choices(parse: str, call: ast.Call) -> dict[str, Any]:
    names = ("env_name", "default", "choices", "case_sensitive")
    arguments = dict(zip(names, call.args, strict=False))
    arguments.update({k.arg: k.value for k in call.keywords if k.arg})
    literal = {
        name: ast.literal_eval(node)
        for name, node in arguments.items()
        if isinstance(node, ast.Constant | ast.List | ast.Tuple)
    }
    fact = {"parse": parse, "choices": literal.get("choices", [])}
    if not literal.get("case_sensitive", True):
        fact["case_sensitive"] = False
    if literal.get("default") is not None:
        fact["default"] = literal["default"]
    return fact


def _body(value: ast.expr, known: dict[str, FunctionNode]) -> ast.AST | None:
    """Give what computes the variable: a lambda's expression or a named function's body."""
    if isinstance(value, ast.Lambda):
        inner = value.body
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and not inner.args:
            return _body(inner.func, known)
        return inner
    if isinstance(value, ast.Name) and value.id in known:
        return ast.Module(body=known[value.id].body, type_ignores=[])
    return None


def _reads(body: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Give each variable read and the expression of its default, if it has one."""
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and _is_getter(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield str(name.value), node.args[1] if len(node.args) > 1 else None
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "environ"
            and isinstance(node.slice, ast.Constant)
        ):
            yield str(node.slice.value), None


def _is_getter(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "getenv":
        return True
    return (
        function.attr == "get"
        and isinstance(function.value, ast.Attribute)
        and function.value.attr == "environ"
    )


def _parse(body: ast.AST, name: str) -> str:
    if isinstance(body, ast.Module):
        return _parse_function(body, name)
    called = {
        n.func.id
        for n in ast.walk(body)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    for helper, parse in _HELPERS.items():
        if helper in called:
            return parse
    if "bool" in called and "int" in called:
        return "int_bool"
    for conversion in ("int", "float"):
        if conversion in called:
            return conversion
    for node in ast.walk(body):
        if isinstance(node, ast.Compare) and (compared := _comparison(node)):
            return compared
    if _calls(body, "split"):
        return "comma_list"
    return "str"


def _parse_function(body: ast.Module, name: str) -> str:
    """A named helper: told by what its returns do."""
    returns = [n.value for n in ast.walk(body) if isinstance(n, ast.Return) and n.value]
    parses = {p for p in (_parse(value, name) for value in returns) if p != "str"}
    if any(isinstance(n, ast.Raise) for n in ast.walk(body)):
        return "port_int" if parses == {"int"} else "path_or_auto"
    if not parses:
        return "str"
    return parses.pop() if len(parses) == 1 else "unknown"


def _comparison(node: ast.Compare) -> str | None:
    right = node.comparators[0]
    if isinstance(node.ops[0], ast.In) and isinstance(right, ast.Tuple | ast.List | ast.Set):
        values = {e.value for e in right.elts if isinstance(e, ast.Constant)}
        return "true_or_1" if values == {"true", "1"} else None
    if isinstance(right, ast.Constant) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        equal = isinstance(node.ops[0], ast.Eq)
        return {("1", True): "is_1", ("true", True): "is_true", ("0", False): "not_0"}.get(
            (str(right.value), equal)
        )
    return None


def _calls(body: ast.AST, method: str) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == method
        for n in ast.walk(body)
    )
