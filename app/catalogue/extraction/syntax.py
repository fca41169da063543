"""Facts that live in function bodies, read from the syntax tree.

A validation function of vLLM is a list of guarded statements: `if <condition>: raise ...`,
`... append(<label>)`, `... return <value>`. A condition is kept as what it reads and which
literals it compares with, never as code.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.In: "in",
    ast.Eq: "in",
    ast.NotIn: "not_in",
    ast.NotEq: "not_in",
}
_BUILTINS = frozenset(dir(builtins)) | {"self"}
_LOGGERS = ("info", "info_once", "warning", "warning_once")


@dataclass(frozen=True)
class Condition:
    """What the tests around a statement look at.

    Attributes:
        reads: dotted names without `self.`, in order, such as `speculative_config.method`.
        compared: literal values by dotted name and relation (`in`, `not_in`, `contains`).
    """

    reads: tuple[str, ...] = ()
    compared: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def mentions(self, name: str) -> bool:
        """Whether any name read ends in `name`."""
        return any(read.rsplit(".", 1)[-1] == name for read in self.reads)

    def without(self, name: str) -> Condition:
        """Give the condition as if it did not read `name`."""
        kept = tuple(read for read in self.reads if read.rsplit(".", 1)[-1] != name)
        return Condition(kept, self.compared)

    def as_fact(self) -> dict[str, Any]:
        """Give the JSON members that say something."""
        fact: dict[str, Any] = {}
        if self.reads:
            fact["reads"] = list(self.reads)
        if self.compared:
            fact["compared"] = self.compared
        return fact


@dataclass(frozen=True)
class Guarded:
    """A statement that is not itself an `if`, with the tests that enclose it, outermost first."""

    statement: ast.stmt
    tests: tuple[ast.expr, ...]


def functions(tree: ast.AST) -> dict[str, FunctionNode]:
    """Give the functions and methods of a module by bare name; the first definition counts."""
    found: dict[str, FunctionNode] = {}
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            found.setdefault(node.name, node)
    return found


def guarded_statements(body: list[ast.stmt], *tests: ast.expr) -> Iterator[Guarded]:
    """Give every plain statement below `body` in source order; nested functions are left out."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from guarded_statements(statement.body, *tests, statement.test)
            yield from guarded_statements(statement.orelse, *tests)
        elif isinstance(statement, ast.With | ast.For | ast.While | ast.Try):
            yield from guarded_statements(statement.body, *tests)
        elif not isinstance(statement, FunctionNode | ast.ClassDef):
            yield Guarded(statement, tests)


def aliases(function: FunctionNode) -> dict[str, str]:
    """Give local names that only abbreviate an attribute: `tp_size = self.parallel_config.x`."""
    known: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or):
                value = value.values[0]  # x = self.y or []
            dotted = dotted_name(value, known)
            if isinstance(target, ast.Name) and dotted is not None:
                known[target.id] = dotted
    return known


def dotted_name(node: ast.expr, known: dict[str, str]) -> str | None:
    """Give `a.b` for `self.a.b`, `getattr(self.a, "b", …)` and calls of them; else None."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value, known)
        return None if owner is None else _join(owner, node.attr)
    if isinstance(node, ast.Call):
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "getattr"
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
        ):
            owner = dotted_name(node.args[0], known)
            return None if owner is None else _join(owner, str(node.args[1].value))
        if isinstance(node.func, ast.Attribute):
            return dotted_name(node.func, known)
    return None


def condition(tests: tuple[ast.expr, ...], known: dict[str, str]) -> Condition:
    """Say what `tests` read and compare with, abbreviations resolved."""
    reads: dict[str, None] = {}
    compared: dict[str, dict[str, list[Any]]] = {}
    for test in tests:
        bound = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and _is_bound(n)}
        for name in _names_read(test, known):
            if name not in bound and name not in _BUILTINS:
                reads[name] = None
        for node in ast.walk(test):
            for name, relation, values in _comparison(node, known):
                compared.setdefault(name, {}).setdefault(relation, []).extend(values)
    # `x is not None and x.y > 1` is about x.y; the bare x says nothing more.
    names = tuple(
        name
        for name in reads
        if not any(other.startswith(name + ".") for other in reads) and not _is_member(name)
    )
    return Condition(names, compared)


def template(node: ast.expr | None) -> str | None:
    """Give a string expression's text; what an f-string fills in becomes `{name}`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _escape(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                parts.append("{" + _placeholder(value.value) + "}")
            elif isinstance(value, ast.Constant):
                parts.append(_escape(str(value.value)))
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None or right is None else left + right
    return None


def raised_text(statement: ast.stmt) -> str | None:
    """Give the text of `raise Error("text", …)`."""
    if isinstance(statement, ast.Raise) and isinstance(statement.exc, ast.Call):
        arguments = statement.exc.args
        return template(arguments[0]) if arguments else None
    return None


def logged_text(statement: ast.stmt) -> str | None:
    """Give the text of `logger.warning_once("text", …)`, each `%s` as a placeholder."""
    call = _call(statement)
    if (
        call is None
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr not in _LOGGERS
        or not call.args
    ):
        return None
    text = template(call.args[0])
    if text is not None:
        for argument in call.args[1:]:
            text = re.sub("%[sdr]", "{" + _placeholder(argument) + "}", text, count=1)
    return text


def appended(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Give `("append" or "extend", argument)` of a statement `name.append(argument)`."""
    call = _call(statement)
    if (
        call is not None
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"append", "extend"}
        and len(call.args) == 1
    ):
        return call.func.attr, call.args[0]
    return None


def string_collection(node: ast.expr) -> list[str] | None:
    """Give the strings of a list, tuple or set literal, `frozenset(...)` of one, or None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        if node.func.id in {"frozenset", "set", "tuple", "list"}:
            return string_collection(node.args[0])
        return None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        values = [e.value for e in node.elts if isinstance(e, ast.Constant)]
        strings = [v for v in values if isinstance(v, str)]
        return strings if len(strings) == len(node.elts) else None
    return None


def slug(text: str, words: int = 8) -> str:
    """Make a key of the first words of a text: `needs_the_foo_bar`."""
    found = re.findall(r"[a-z0-9]+", re.sub(r"\{.*?\}", " ", text).lower())
    return "_".join(found[:words])


def _names_read(node: ast.AST, known: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.expr):
        name = dotted_name(node, known)
        if name is not None:
            yield name
            if isinstance(node, ast.Call):
                for argument in node.args:
                    yield from _names_read(argument, known)
            return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Constant):
            yield from _names_read(child, known)


def _comparison(node: ast.AST, known: dict[str, str]) -> Iterator[tuple[str, str, list[Any]]]:
    """Give what is compared, how, and the literals, of one comparison with literals."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        relation = _COMPARISONS.get(type(node.ops[0]))
        name = dotted_name(left, known)
        if relation and name and (values := _literals(right)):
            yield name, relation, values
        elif isinstance(node.ops[0], ast.In) and (values := _literals(left)):
            yield from ((name, "contains", values) for name in _names_read(right, known))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        values = string_collection(node.func.value) or []
        if node.func.attr in {"intersection", "isdisjoint"} and values:
            yield from ((name, "contains", values) for name in _names_read(node.args[0], known))


def _is_bound(node: ast.Name) -> bool:
    """Whether a comprehension or `:=` binds the name."""
    return isinstance(node.ctx, ast.Store)


def _is_member(name: str) -> bool:
    """Whether a dotted name is a class attribute, such as a member of an enum."""
    return "." in name and name[0].isupper()


def _literals(node: ast.expr) -> list[Any]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Attribute) and node.attr.isupper():
        return [node.attr]  # a member of an enum
    return list(string_collection(node) or ())


def _call(statement: ast.stmt) -> ast.Call | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return statement.value
    return None


def _join(owner: str, name: str) -> str:
    return name if owner == "self" else f"{owner}.{name}"


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _placeholder(node: ast.expr) -> str:
    """Name what is filled in after the innermost variable or attribute."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return _placeholder(node.args[0])  # ", ".join(unsupported)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return "value"
