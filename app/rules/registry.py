"""Rules: one declaration and one generator function each, in any module.

    @rule(
        id="sampling-mask-logprobs-mode",
        title=...,
        ...
    )
    def logprobs_mode(config: ServeConfig) -> Iterator[Finding]:
        if config["return_sampling_mask"] and config["logprobs_mode"] != "processed_logprobs":
            yield logprobs_mode.finding("...", location=config.place("logprobs_mode"))

Nothing is registered at import: `rules_in` collects the `Rule` objects of a module or package,
so that docs, `GET /rules`, SARIF and the tests see the same rules that a verdict is made of.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeAlias

from app.rules.declaration import Declaration
from app.serve_config.serve_config import Abstain, ServeConfig, UnresolvedValue
from app.verdict.finding import Finding, Severity
from app.verdict.verdict import NotChecked

Check: TypeAlias = Callable[[ServeConfig], Iterator[Finding]]
CrashHook: TypeAlias = Callable[[str, Exception], None]
Declared = ParamSpec("Declared")

INTERNAL_ERROR = Declaration(
    id="internal-rule-error",
    title="A rule of ours crashed",
    explanation="The rule named in the evidence failed on this proposal. That is a bug of the "
    "gate, not of the proposal, so it does not count against it.",
    remedy="Report it with the proposal. The verdict is right but for what that rule would say.",
    severity=Severity.INFO,
    area="internal",
    source="app/rules/registry.py::run",
)


@dataclass(frozen=True)
class Rule:
    """A declared rule of the configuration gate and its check."""

    declaration: Declaration
    check: Check

    @property
    def id(self) -> str:
        """The stable id."""
        return self.declaration.id

    def finding(self, message: str, **members: Any) -> Finding:
        """Build a finding of this rule; `members` are those of `Finding`.

        Raises:
            ValueError: it would reject, and the rule is not declared as one that does.
        """
        found = finding_of(self.declaration, message, **members)
        if found.severity is Severity.ERROR and not self.refuses:
            raise ValueError(f"{self.id} is not declared with the severity error")
        return found

    @property
    def refuses(self) -> bool:
        """Whether its findings may keep a proposal from being accepted."""
        return self.declaration.severity is Severity.ERROR


def finding_of(declaration: Declaration, message: str, **members: Any) -> Finding:
    """Build a finding of a declared rule; `members` are those of `Finding`."""
    members.setdefault("severity", declaration.severity)
    return Finding(rule=declaration.id, message=message, **members)


def _declare(
    declaration: Callable[Declared, Declaration],
) -> Callable[Declared, Callable[[Check], Rule]]:
    def rule(*args: Declared.args, **kwargs: Declared.kwargs) -> Callable[[Check], Rule]:
        declared = declaration(*args, **kwargs)
        return lambda check: Rule(declared, check)

    return rule


rule = _declare(Declaration)
"""Decorator that makes a check function a `Rule`; takes what `Declaration` takes."""


def rules_in(source: ModuleType | Path) -> tuple[Rule, ...]:
    """Collect the rules of a module, of a package's modules, or of a directory's files.

    Raises:
        ValueError: two rules have the same id.
    """
    found: dict[str, Rule] = {}
    for module in _modules(source):
        for value in vars(module).values():
            if isinstance(value, Rule) and found.setdefault(value.id, value) is not value:
                raise ValueError(f"two rules have the id {value.id!r}")
    return tuple(found.values())


def _modules(source: ModuleType | Path) -> Iterator[ModuleType]:
    if isinstance(source, Path):
        for path in sorted(source.glob("*.py")):
            yield _load(path)
        return
    yield source
    if hasattr(source, "__path__"):
        for entry in pkgutil.iter_modules(source.__path__):
            yield from _modules(import_module(f"{source.__name__}.{entry.name}"))


def _load(path: Path) -> ModuleType:
    name = f"vllm_admission_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Registry:
    """The rules of the configuration gate, and every declaration there is to explain."""

    rules: tuple[Rule, ...]
    others: tuple[Declaration, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a second declaration of an id."""
        seen: set[str] = set()
        for declaration in self.declarations:
            if declaration.id in seen:
                raise ValueError(f"the rule id {declaration.id!r} is declared twice")
            seen.add(declaration.id)

    @cached_property
    def declarations(self) -> tuple[Declaration, ...]:
        """All declarations: those of the rules, then parser, request and replay ones."""
        return (*(r.declaration for r in self.rules), *self.others)

    @cached_property
    def refusing(self) -> tuple[Rule, ...]:
        """The rules that may keep a proposal from being accepted."""
        return tuple(entry for entry in self.rules if entry.refuses)

    @cached_property
    def by_id(self) -> Mapping[str, Declaration]:
        """Declarations by id."""
        return {declaration.id: declaration for declaration in self.declarations}

    def extended(self, rules: Iterable[Rule]) -> Registry:
        """Give a registry with more rules, such as those of a site."""
        return Registry((*self.rules, *rules), self.others)


@cache
def default_registry() -> Registry:
    """Give the registry of all rules shipped with the project."""
    configuration = import_module("app.rules.configuration")
    others = [INTERNAL_ERROR]
    for name in _DECLARING_MODULES:
        others.extend(getattr(import_module(name), "DECLARATIONS", ()))
    return Registry(rules_in(configuration), tuple(others))


# Declarations whose findings are made elsewhere: the parser, the request and the replay gate.
_DECLARING_MODULES = tuple(
    name
    for name in (
        "app.serve_config.declarations",
        "app.request_rules.declarations",
        "app.replay.declarations",
        "app.rules.correction",
        "app.rules.policy",
        "app.model_facts",
    )
    if importlib.util.find_spec(name) is not None
)


def rules_as_json() -> list[dict[str, Any]]:
    """Give every declaration as `GET /rules` lists them, ordered by id."""
    declarations = default_registry().declarations
    return [d.as_json() for d in sorted(declarations, key=lambda d: d.id)]


def run(
    rules: Iterable[Rule], config: ServeConfig, on_crash: CrashHook | None = None
) -> tuple[tuple[Finding, ...], tuple[NotChecked, ...]]:
    """Run the rules that the version has.

    A rule that lacks a fact abstains. Where the proposal itself leaves the value open, a rule
    that could refuse makes an undecided finding instead. A rule that crashes makes an internal
    finding, and `on_crash` (a metric, a log line) is told.
    """
    findings: list[Finding] = []
    abstained: list[NotChecked] = []
    for entry in rules:
        if not entry.declaration.applies_to(config.catalogue.version):
            continue
        try:
            for finding in entry.check(config):
                findings.append(finding)  # noqa: PERF402 - what came before a crash counts
        except UnresolvedValue as question:
            if entry.declaration.severity is Severity.ERROR:
                findings.append(_open_question(entry, question))
            else:
                abstained.append(NotChecked(entry.id, question.needs))
        except Abstain as missing:
            abstained.append(NotChecked(entry.id, missing.needs))
        except Exception as error:
            findings.append(_internal(entry, error))
            if on_crash is not None:
                on_crash(entry.id, error)
    return tuple(findings), tuple(abstained)


def _open_question(entry: Rule, question: UnresolvedValue) -> Finding:
    return entry.finding(
        f"whether this rule refuses depends on {question.needs}: {entry.declaration.title}",
        severity=Severity.WARNING,
        location=question.location,
        undecided=True,
    )


def _internal(entry: Rule, error: Exception) -> Finding:
    return finding_of(
        INTERNAL_ERROR,
        f"the rule {entry.id} crashed ({type(error).__name__}); its answer is missing",
        evidence={"rule": entry.id, "error": f"{type(error).__name__}: {error}"},
    )
