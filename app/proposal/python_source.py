"""Engine arguments in Python source: `LLM(model="…", tensor_parallel_size=2)`.

The source is parsed and never run. Literals are read, and names that the text assigns a literal;
everything else is a value that is not known.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from app.errors import MalformedDocument, PayloadTooLarge, Problem
from app.proposal.positions import LineIndex
from app.proposal.proposal import Entrypoint, Form, Proposal, Variable
from app.proposal.python_writer import PythonWriter
from app.serve_config.serve_config import Unresolved
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

MAX_TEXT: Final = 1 << 18
_MAX_DEPTH: Final = 100  # of brackets; Python's own parser takes memory by the square of them
_ENGINES: Final = ("LLM", "AsyncEngineArgs", "EngineArgs")
_CALL: Final = re.compile(rf"\b(?:{'|'.join(_ENGINES)})\s*\(")
_IMPORT: Final = re.compile(r"^\s*(?:import|from)\s+\w", re.MULTILINE)
_STATEMENT: Final = re.compile(
    rf"\s*(?:\w+\s*=\s*)?(?:[\w.]+\.)?(?:{'|'.join(_ENGINES)})\s*\(", re.ASCII
)
_LONE_RETURN: Final = re.compile(r"\r(?!\n)")
_BRACKETS: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def looks_like_python(text: str) -> bool:
    """Whether a text is Python source that makes an engine, rather than shell text."""
    if _CALL.search(text) is None:
        return False
    return _IMPORT.search(text) is not None or _STATEMENT.match(text) is not None


def parse_python(text: str, *, source: str = "python") -> Proposal:
    """Read the one call of `LLM`, `EngineArgs` or `AsyncEngineArgs` in Python source.

    `os.environ["NAME"] = "value"` gives the environment.

    Raises:
        MalformedDocument: it is not Python, or has no or several such calls.
        PayloadTooLarge: it is longer than any script that starts an engine.
    """
    if len(text) > MAX_TEXT:
        raise PayloadTooLarge(f"Python source of more than {MAX_TEXT} characters is not read")
    text = _LONE_RETURN.sub("\n", text)  # it ends a line for Python, and has to for us
    index = LineIndex(text, source)
    tree = _tree(text)
    reader = _Source(index, tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _engine(node)]
    if len(calls) != 1:
        code = "several-calls" if calls else "no-call"
        where = calls[1] if calls else None
        detail = f"give one call of {', '.join(_ENGINES)}; there are {len(calls) or 'none'}"
        line, column = (1, 1) if where is None else (where.lineno, where.col_offset + 1)
        raise _broken(Problem(code, detail, line=line, column=column))
    return reader.proposal(calls[0])


def _tree(text: str) -> ast.Module:
    depth = 0
    for char in text:
        depth += _BRACKETS.get(char, 0)
        if depth > _MAX_DEPTH:
            raise _broken(Problem("nested-too-deeply", "brackets nest too deeply"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(text)
    except SyntaxError as error:
        problem = Problem("python-syntax", error.msg, line=error.lineno, column=error.offset)
    except (ValueError, RecursionError, MemoryError) as error:
        problem = Problem("python-syntax", str(error) or "it cannot be parsed")
    raise _broken(problem)


def _broken(problem: Problem) -> MalformedDocument:
    return MalformedDocument("the Python source cannot be read", (problem,))


def _engine(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _ENGINES


class _Source:
    def __init__(self, index: LineIndex, tree: ast.Module) -> None:
        self._index = index
        self._lines = index.text.splitlines(keepends=True)
        self._tree = tree
        self._names = _assigned_names(tree)
        self._findings: list[Finding] = []

    def proposal(self, call: ast.Call) -> Proposal:
        kwargs: dict[str, Any] = {}
        places: dict[str, Location] = {}
        unseen: list[str] = []
        for position in call.args[:1]:
            if isinstance(position, ast.Starred):
                unseen.append(ast.unparse(position.value)[:60])
            else:
                kwargs["model"] = self._value(position)
                places["model"] = self._place(position)
        for keyword in call.keywords:
            if keyword.arg is not None:
                kwargs[keyword.arg] = self._value(keyword.value)
                places[keyword.arg] = self._place(keyword)
                continue
            more = self._value(keyword.value)
            if isinstance(more, dict) and all(isinstance(key, str) for key in more):
                kwargs.update(more)
                places.update(dict.fromkeys(more, self._place(keyword.value)))
            else:
                unseen.append(ast.unparse(keyword.value)[:60])
                self._findings.append(self._open(keyword.value))
        source = self._index.text

        def reread(edited: str) -> Proposal:
            return parse_python(edited, source=self._index.source)

        return Proposal(
            form=Form.PYTHON,
            entrypoint=Entrypoint.ENGINE_ARGS,
            kwargs=kwargs,
            places=places,
            unseen=tuple(unseen),
            environment=dict(self._environment()),
            source=source,
            text=self._index,
            command=self._place(call.func),
            findings=tuple(self._findings),
            reread=reread,
            writer=PythonWriter(self._index),
        )

    def _value(self, node: ast.expr) -> Any:
        """Give a literal's value; unknown where it is not one all through."""
        if isinstance(node, ast.Name) and node.id in self._names:
            node = self._names[node.id]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            return dict(zip(keys, map(self._value, node.values), strict=True))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict" and not node.args:
            named = {k.arg: self._value(k.value) for k in node.keywords if k.arg is not None}
            if len(named) == len(node.keywords):
                return named
        if isinstance(node, ast.List | ast.Tuple):
            items = [self._value(item) for item in node.elts]
            if not any(isinstance(item, Unresolved) for item in items):
                return items
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            text = ast.unparse(node)[:60]
            return Unresolved((text,), text)
        return list(value) if isinstance(value, tuple | set) else value

    def _environment(self) -> Iterator[tuple[str, Variable]]:
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0]
            if (
                isinstance(target, ast.Subscript)
                and ast.unparse(target.value) in {"os.environ", "environ"}
                and isinstance(target.slice, ast.Constant)
                and isinstance(target.slice.value, str)
            ):
                name, value = target.slice.value, self._value(node.value)
                location = replace(self._place(node), variable=name)
                if isinstance(value, Unresolved):
                    yield name, Variable(name, value.text, location, value.variables)
                else:
                    yield name, Variable(name, str(value), location)

    def _place(self, node: ast.expr | ast.keyword | ast.stmt) -> Location:
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return self._index.location(start, end)

    def _offset(self, line: int, column: int) -> int:
        """Turn Python's line and UTF-8 column into an offset."""
        text = self._line(line).encode()[:column].decode(errors="ignore")
        return self._index.offset(line, len(text) + 1)

    def _line(self, line: int) -> str:
        start = self._index.offset(line, 1)
        end = self._index.text.find("\n", start)
        return self._index.text[start : end if end >= 0 else len(self._index.text)]

    def _open(self, node: ast.expr) -> Finding:
        return Finding(
            rule="python-unseen-arguments",
            severity=Severity.WARNING,
            message=f"**{ast.unparse(node)[:60]} may hold arguments that decide; write them out",
            location=self._place(node),
            undecided=True,
        )


def _assigned_names(tree: ast.Module) -> dict[str, ast.expr]:
    """Give the names that the text assigns once, with what it assigns."""
    found: dict[str, ast.expr] = {}
    several: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            several.update({node.id} & found.keys())
            found.setdefault(node.id, node)
    values = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and not isinstance(node.value, ast.Name)
    }
    return {name: value for name, value in values.items() if name not in several}
