"""Settings against the configuration classes that they end up in."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.catalogue import Catalogue, Flag
from app.serve_config.diagnostics import finding, shorten
from app.serve_config.field_check import (
    FieldProblem,
    ProblemKind,
    check_class,
    check_field,
    nested_class,
    typed_object,
)
from app.serve_config.serve_config import Setting, Unresolved
from app.serve_config.values import argument_converter
from app.verdict.finding import Finding
from app.verdict.fix import Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

# Built for every server, whatever else is set; the others only if their feature is on.
_ALWAYS_BUILT: Final = frozenset(
    {"ModelConfig", "CacheConfig", "ParallelConfig", "SchedulerConfig", "LoadConfig"}
    | {"ObservabilityConfig", "KernelConfig", "UVAOffloadConfig", "PrefetchOffloadConfig"}
    | {"StructuredOutputsConfig", "CompilationConfig", "OffloadConfig", "VllmConfig"}
)
# JSON that vLLM hands to a class although its option has no class of its own.
_CLASS_OF: Final = {
    "speculative_config": "SpeculativeConfig",
    "watermark_config": "WatermarkConfig",
    "diffusion_config": "DiffusionConfig",
}
# Those of them that vLLM takes as JSON text too, so that a program may give either.
_TEXT_TOO: Final = frozenset({"watermark_config", "diffusion_config"})
# Fields that options of their own set, without the class telling so.
_FIELDS: Final = {
    "data_parallel_rank": "ParallelConfig",
    "data_parallel_rpc_port": "ParallelConfig",
    "data_parallel_size_local": "ParallelConfig",
    "shutdown_timeout": "VllmConfig",
}
# Checks that are made only where another setting turns the class on.
_BUILT_WITH: Final = {"LoRAConfig": "enable_lora"}


def classes_turned_on(
    settings: Mapping[str, Setting], model_config: Mapping[str, Any] | None, catalogue: Catalogue
) -> frozenset[str]:
    """Give the classes that are built because another setting or the model asks for them."""
    built = {
        name
        for name, dest in _BUILT_WITH.items()
        if dest in settings and settings[dest].value is True
    }
    architectures = (model_config or {}).get("architectures")
    if isinstance(architectures, list) and any(
        catalogue.has_ability(str(name), "supports_multimodal") for name in architectures
    ):
        built.add("MultiModalConfig")
    return frozenset(built)


def check_setting(
    flag: Flag, setting: Setting, catalogue: Catalogue, turned_on: Container[str] = ()
) -> Iterator[Finding]:
    """Say what the configuration classes refuse in one given setting.

    `turned_on` are the classes that are built besides those that every server has.
    """
    value = setting.value
    if isinstance(value, Unresolved):
        return
    if value is None:
        problems = _null_problems(flag, setting, catalogue)
        for problem in problems:
            yield _finding(flag, setting, problem)
        return
    name = config_class_of(flag)
    if name is not None and name in catalogue.config_classes:
        value = _with_underscores(flag.dest, _parsed(flag.dest, value))
        problems = check_class(catalogue, name, value)
    elif flag.dest in _FIELDS:
        problems = check_field(catalogue, _FIELDS[flag.dest], flag.dest, value)
    elif flag.config_field is not None and (
        flag.config_class in _ALWAYS_BUILT or flag.config_class in turned_on
    ):
        problems = check_field(catalogue, flag.config_class or "", flag.config_field, value)
    else:
        return
    for problem in problems:
        yield _finding(flag, setting, problem)


def _null_problems(flag: Flag, setting: Setting, catalogue: Catalogue) -> list[FieldProblem]:
    """Judge a null that a program gives where the argument and the field take none.

    On a command line a null is what an optional type makes of an empty word.
    """
    place = setting.location
    if place is None or place.pointer is None or flag.config_class not in _ALWAYS_BUILT:
        return []
    if (
        flag.config_field is None
        or check_field(catalogue, "AsyncEngineArgs", flag.dest, None) == []
    ):
        return []
    return check_field(catalogue, flag.config_class, flag.config_field, None)


def engine_argument(dest: str, catalogue: Catalogue) -> Flag:
    """Give an engine argument that has no option, as the option that it might be."""
    field = catalogue.config_classes["AsyncEngineArgs"].fields.get(dest)
    cls = None if field is None else nested_class(field.type)
    return Flag(
        dest=dest,
        options=(),
        group="",
        action="",
        conv="str" if cls is None else "dataclass_json",
        cls=cls,
    )


def typed_setting(flag: Flag, value: Any, catalogue: Catalogue) -> Any:
    """Give JSON for a configuration class as that class would hold it."""
    if flag.dest in _CLASS_OF:
        return _with_underscores(flag.dest, value)
    name = argument_converter(flag).cls
    return value if name is None else typed_object(catalogue, name, value)


def _parsed(dest: str, value: Any) -> Any:
    """Read JSON text as vLLM does where it takes that too; text that is none stays."""
    if dest not in _TEXT_TOO or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _with_underscores(dest: str, value: Any) -> Any:
    """Spell keys as vLLM does: `EngineArgs.create_speculative_config` takes dashes for them."""
    if dest != "speculative_config" or not isinstance(value, Mapping):
        return value
    if not any("-" in str(key) for key in value):
        return value
    return {str(key).replace("-", "_"): item for key, item in value.items()}


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
