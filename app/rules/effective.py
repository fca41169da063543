"""The settings of a verdict: what was given, what vLLM makes of it, and on request the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from app.memory.estimate import estimate
from app.rules.derived.compilation import compilation_mode
from app.rules.derived.cuda_graphs import graph_mode
from app.rules.runner import decide_runner
from app.rules.runner_features import Moment
from app.serve_config.serve_config import Abstain, Origin, ServeConfig, Setting, Unresolved
from app.verdict.finding import Finding


def settings_of(
    config: ServeConfig, findings: Iterable[Finding], *, every: bool = False
) -> dict[str, Any]:
    """Give the settings by destination, as the answer carries them.

    `given` are those that somebody gave, with value, origin and place. `effective` lists what
    vLLM changes silently: `asked` for, `effective` value, `because`, and the `rule` that tells;
    it is taken from findings whose evidence has `dest` and `effective`. `derived` is what else
    vLLM works out. With `every`, `all` has every setting of the version with value and origin.
    """
    given = {
        dest: _setting(setting)
        for dest, setting in sorted(config.settings.items())
        if setting.origin is not Origin.DEFAULT
    }
    body: dict[str, Any] = {
        "given": given,
        "effective": _effective(findings),
        "derived": _derived(config),
    }
    if every:
        changed = {entry["dest"]: entry for entry in body["effective"]}
        body["all"] = {
            dest: _with_effective(_setting(setting), changed.get(dest))
            for dest, setting in sorted(config.settings.items())
        }
    return body


def _effective(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    entries = [
        {
            "dest": found.evidence["dest"],
            "asked": found.evidence.get("asked"),
            "effective": found.evidence["effective"],
            "because": found.message,
            "rule": found.rule,
        }
        for found in findings
        if "dest" in found.evidence and "effective" in found.evidence
    ]
    return sorted(entries, key=lambda entry: str(entry["dest"]))


def _with_effective(body: dict[str, Any], changed: Mapping[str, Any] | None) -> dict[str, Any]:
    if changed is not None:
        body["effective"] = changed["effective"]
    return body


def _setting(setting: Setting) -> dict[str, Any]:
    value = setting.value
    body: dict[str, Any] = {
        "value": value.text if isinstance(value, Unresolved) else value,
        "origin": setting.origin.value,
    }
    if isinstance(value, Unresolved):
        body["unresolved"] = list(value.variables)
    if setting.location is not None:
        body["location"] = setting.location.as_json()
    if setting.overridden:
        body["overridden"] = [location.as_json() for location in setting.overridden]
    return body


def _derived(config: ServeConfig) -> dict[str, Any]:
    body: dict[str, Any] = {}
    try:
        body["model_runner"] = decide_runner(config, Moment.LAST_CHECK).as_json()
    except Abstain as question:
        body["model_runner"] = {"version": None, "because": f"it hangs on {question.needs}"}
    with suppress(Abstain):
        body["compilation_mode"] = compilation_mode(config)
        body["cudagraph_mode"] = graph_mode(config)
    with suppress(Abstain):
        body["memory"] = estimate(config).as_json()
    return body
