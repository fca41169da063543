"""Settings against the configuration classes that they end up in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.catalogue import Catalogue, Flag
from app.serve_config.diagnostics import finding, shorten
from app.serve_config.field_check import FieldProblem, ProblemKind, check_class, check_field
from app.serve_config.serve_config import Setting, Unresolved
from app.serve_config.values import argument_converter
from app.verdict.finding import Finding
from app.verdict.fix import Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

# Built for every server, whatever else is set; the others only if their feature is on.
_ALWAYS_BUILT: Final = frozenset(
    {"ModelConfig", "CacheConfig", "ParallelConfig", "SchedulerConfig", "LoadConfig"}
    | {"ObservabilityConfig", "KernelConfig", "UVAOffloadConfig", "PrefetchOffloadConfig"}
    | {"StructuredOutputsConfig", "CompilationConfig", "OffloadConfig"}
)
# JSON that vLLM hands to a class although its option has no class of its own.
_CLASS_OF: Final = {"speculative_config": "SpeculativeConfig"}


def check_setting(flag: Flag, setting: Setting, catalogue: Catalogue) -> Iterator[Finding]:
    """Say what the configuration classes refuse in one given setting."""
    value = setting.value
    if value is None or isinstance(value, Unresolved):
        return
    name = config_class_of(flag)
    if name is not None and name in catalogue.config_classes:
        if isinstance(value, Mapping) and flag.dest in _CLASS_OF:
            value = {str(key).replace("-", "_"): item for key, item in value.items()}
        problems = check_class(catalogue, name, value)
    elif flag.config_class in _ALWAYS_BUILT and flag.config_field is not None:
        problems = check_field(catalogue, flag.config_class or "", flag.config_field, value)
    else:
        return
    for problem in problems:
        yield _finding(flag, setting, problem)


def config_class_of(flag: Flag) -> str | None:
    """Give the configuration class that an option's JSON is for."""
    return argument_converter(flag).cls or _CLASS_OF.get(flag.dest)


def _finding(flag: Flag, setting: Setting, problem: FieldProblem) -> Finding:
    path = ".".join(str(step) for step in problem.path)
    rule = str(problem.kind)
    if flag.dest == "max_logprobs" and problem.kind is ProblemKind.RANGE:
        rule = "max-logprobs-range"
    label = f"{flag.name}.{path}" if path else flag.name
    value = _at(setting.value, problem.path)
    return finding(
        rule,
        shorten(f"{label}: {problem.message}" if path else f"{label} {problem.message}", 600),
        location=_location(setting, problem),
        fix=_fix(flag.dest, problem, value),
        engine_message=problem.engine,
        evidence=_evidence(value),
    )


def _evidence(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"value": shorten(value)}
    return {"value": value} if isinstance(value, int | float) or value is None else {}


def _location(setting: Setting, problem: FieldProblem) -> Location | None:
    place = setting.location
    if place is None or place.pointer is None or place.argv_index is not None:
        return place
    steps = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in problem.path)
    return replace(place, pointer=f"{place.pointer}{steps}")


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _fix(dest: str, problem: FieldProblem, value: Any) -> Fix | None:
    path = [str(step) for step in problem.path]
    if problem.kind is ProblemKind.UNKNOWN_KEY:
        old = ".".join((dest, *path))
        if not problem.suggestions:
            return Fix(f"leave {path[-1]} out", (RemoveFlag(old),), safe=False)
        new = ".".join((dest, *path[:-1], problem.suggestions[0]))
        edits = (RemoveFlag(old), SetFlag(new, value))
        return Fix(f"write {problem.suggestions[0]}", edits, safe=True)
    if not all(isinstance(step, str) for step in problem.path):
        return None
    name = ".".join((dest, *path))
    if problem.nearest is not None:
        edit = SetFlag(name, problem.nearest)
        return Fix(f"use {problem.nearest}, the nearest value allowed", (edit,), safe=False)
    if problem.suggestions:
        edit = SetFlag(name, problem.suggestions[0])
        return Fix(f"use {problem.suggestions[0]}", (edit,), safe=False)
    return None
