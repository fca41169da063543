"""Environment variables as `vllm/envs.py` reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from app.catalogue import Catalogue, EnvironmentFact
from app.proposal.proposal import Variable
from app.serve_config import absence
from app.serve_config.diagnostics import MAX_FINDINGS, finding
from app.serve_config.suggest import nearest
from app.verdict.finding import Finding
from app.verdict.fix import Fix, SetEnvironment, UnsetEnvironment

# What Kubernetes sets in every pod of a namespace that has a Service named vllm or vllm-….
_SERVICE_LINK: Final = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)")
_SERVICE_LINK_ADVICE: Final = (
    "Kubernetes sets it for a Service named vllm: rename the Service, or set "
    "enableServiceLinks: false"
)
_ON: Final = {"1", "true", "yes", "on", "y", "t", "enable", "enabled"}
_OFF: Final = {"0", "false", "no", "off", "n", "f", "", "none", "disable", "disabled"}
# Lenient kinds: the values that count as on, in lower case.
_LENIENT: Final = {"true_or_1": {"true", "1"}, "is_1": {"1"}, "is_true": {"true"}}
# Variables that anything but 0 turns on, also what reads as off.
_ON_UNLESS_0: Final = "not_0"


def check_environment(
    environment: Mapping[str, Variable], catalogue: Catalogue, *, refuse_unknown: bool
) -> list[Finding]:
    """Say which variables vLLM cannot read, ignores, or does not know.

    `refuse_unknown` is `--fail-on-environ-validation`.
    """
    found: list[Finding] = []
    for variable in environment.values():
        if len(found) >= MAX_FINDINGS:
            break
        fact = catalogue.env_vars.get(variable.name)
        if fact is None:
            if variable.name.startswith("VLLM_"):
                found.append(_unknown(variable, catalogue, refuse_unknown))
        elif not variable.unresolved:
            problem = (
                _unreadable(variable, fact)
                or _ignored(variable, fact)
                or _rust_path(variable, environment)
            )
            if problem is not None:
                found.append(problem)
    return found


def _unreadable(variable: Variable, fact: EnvironmentFact) -> Finding | None:
    if not fact.strict:
        return None
    wanted = _wanted(fact, variable.value)
    if wanted is None:
        return None
    hidden = ""
    if fact.parse == "port_int" and "://" in variable.value:
        hidden = (
            "; it looks like what Kubernetes injects for a Service named vllm: rename the "
            "Service, or set enableServiceLinks: false"
        )
    return finding(
        "env-invalid-value",
        f"{variable.name} must be {wanted}, not {variable.value!r}{hidden}",
        location=variable.location,
        engine_message=_engine_message(variable, fact),
        fix=_fix(variable, fact),
    )


def _wanted(fact: EnvironmentFact, value: str) -> str | None:
    """Say what the variable must be; None if the value is one."""
    if fact.parse in {"int_bool", "int", "port_int"}:
        words = "0 or 1" if fact.parse == "int_bool" else "an integer"
        return None if _parses(int, value) else words
    if fact.parse == "float":
        return None if _parses(float, value) else "a number"
    if fact.parse == "json_or_file":
        # A path that exists where the server runs is read as a file; we cannot see it.
        looks_like_path = not any(mark in value for mark in "{[") and any(
            mark in value for mark in "/."
        )
        return None if looks_like_path or _parses(json.loads, value) else "JSON or a file"
    if fact.parse in {"choice", "choice_set"} and fact.choices:
        values = [value]
        if fact.parse == "choice_set":
            values = [part.strip() for part in value.split(",") if part.strip()]
        choices = [str(choice) for choice in fact.choices]
        folded = set(choices) if fact.case_sensitive else {c.lower() for c in choices}
        if all((v if fact.case_sensitive else v.lower()) in folded for v in values):
            return None
        return f"one of {', '.join(choices)}"
    return None


def _parses(parse: Callable[[str], object], value: str) -> bool:
    try:
        parse(value)
    except (ValueError, RecursionError):
        return False
    return True


def _engine_message(variable: Variable, fact: EnvironmentFact) -> str | None:
    if fact.parse in {"int_bool", "int"}:
        return f"invalid literal for int() with base 10: {variable.value!r}"
    if fact.parse == "float":
        return f"could not convert string to float: {variable.value!r}"
    if fact.parse == "choice":
        return (
            f"Invalid value '{variable.value}' for {variable.name}. "
            f"Valid options: {list(fact.choices)}."
        )
    if fact.parse == "port_int" and "://" not in variable.value:
        return f"VLLM_PORT '{variable.value}' must be a valid integer"
    return None


def _fix(variable: Variable, fact: EnvironmentFact) -> Fix:
    value = variable.value.strip().lower()
    if fact.parse == "int_bool" and value in _ON | (_OFF - {""}):
        digit = "1" if value in _ON else "0"
        edit = SetEnvironment(variable.name, digit)
        return Fix(f"set {variable.name}={digit}", (edit,), safe=True)
    if fact.parse == "choice":
        close = nearest(value, [str(choice) for choice in fact.choices], 1)
        if close:
            edit = SetEnvironment(variable.name, close[0])
            return Fix(f"set {variable.name}={close[0]}", (edit,), safe=False)
    unset = UnsetEnvironment(variable.name)
    return Fix(f"unset {variable.name}, which then has its default", (unset,), safe=False)


def _ignored(variable: Variable, fact: EnvironmentFact) -> Finding | None:
    """Tell of a value that reads as on and counts as off, or the other way round."""
    counts_as_on = _LENIENT.get(fact.parse)
    value = variable.value.strip().lower()
    if fact.parse == _ON_UNLESS_0 and value in _OFF - {"0"}:
        return finding(
            "env-ignored-value",
            f"{variable.name}={variable.value} counts as on; only 0 counts as off",
            location=variable.location,
            fix=Fix(f"set {variable.name}=0", (SetEnvironment(variable.name, "0"),), safe=False),
        )
    if counts_as_on is None or value in counts_as_on or value not in _ON:
        return None
    wanted = "1" if "1" in counts_as_on else "true"
    return finding(
        "env-ignored-value",
        f"{variable.name}={variable.value} counts as off; only {' or '.join(sorted(counts_as_on))} "
        "counts as on",
        location=variable.location,
        fix=Fix(
            f"set {variable.name}={wanted}", (SetEnvironment(variable.name, wanted),), safe=False
        ),
    )


def _rust_path(variable: Variable, environment: Mapping[str, Variable]) -> Finding | None:
    """Tell of the path of the Rust binary that nothing turns on."""
    if variable.name != "VLLM_RUST_FRONTEND_PATH":
        return None
    for switch in ("VLLM_USE_RUST_FRONTEND", "VLLM_USE_RUST_BENCH"):
        other = environment.get(switch)
        if other is not None and (other.unresolved or other.value.strip() not in {"0", ""}):
            return None
    edit = SetEnvironment("VLLM_USE_RUST_FRONTEND", "1")
    return finding(
        "env-rust-path-unused",
        f"{variable.name} has no effect without VLLM_USE_RUST_FRONTEND=1",
        location=variable.location,
        fix=Fix("set VLLM_USE_RUST_FRONTEND=1", (edit,), safe=False),
        engine_message=(
            "VLLM_RUST_FRONTEND_PATH is set without enabling VLLM_USE_RUST_FRONTEND or "
            "VLLM_USE_RUST_BENCH. Set one of them to 1 to use the vllm-rs binary."
        ),
    )


def _unknown(variable: Variable, catalogue: Catalogue, refuse: bool) -> Finding:
    # Compared without the prefix that all have, which makes any two names alike.
    stems = {name.removeprefix("VLLM_"): name for name in catalogue.env_vars}
    near = tuple(stems[stem] for stem in nearest(variable.name.removeprefix("VLLM_"), stems))
    tail, names = absence.tell(absence.variable(catalogue, variable.name), near)
    if _SERVICE_LINK.search(variable.name):
        tail, names = f"; {_SERVICE_LINK_ADVICE}", ()
    fix = None
    if names:
        edits = (UnsetEnvironment(variable.name), SetEnvironment(names[0], variable.value))
        fix = Fix(f"rename it to {names[0]}", edits, safe=False)
    return finding(
        "env-unknown-refused" if refuse else "env-unknown",
        f"this version does not read {variable.name}{tail}",
        location=variable.location,
        engine_message=f"Unknown vLLM environment variable detected: {variable.name}",
        fix=fix,
    )
