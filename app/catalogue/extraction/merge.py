"""Merging what a second platform saw into a capture.

vLLM offers other choices and defaults on another platform, and can import other kernels there.
Of the second capture are kept: what of flags and fields differs, and every row that the first
could not read.
"""

from __future__ import annotations

import re
from typing import Any

Fact = dict[str, Any]
_MODEL_NOTE = re.compile(r"model class (\w+): ")
_BACKEND_NOTE = re.compile(r"attention backend (\w+): ")


def merge(first: Fact, second: Fact) -> Fact:
    """Give the first capture, with the second's differences under `platform_overrides`.

    Raises:
        ValueError: they are of different versions, or of one platform.
    """
    if first["vllm_version"] != second["vllm_version"]:
        raise ValueError(
            f"captures of different versions: {first['vllm_version']} and {second['vllm_version']}"
        )
    platform = second["captured_on_platform"]
    if first["captured_on_platform"] == platform:
        raise ValueError(f"both captures are of platform {platform}")
    merged = {**first, "registries": dict(first["registries"])}
    _fill_matrix(merged, second)
    _fill_abilities(merged, second)
    overrides = {
        "flags": _flag_differences(first["flags"], second["flags"]),
        "fields": _field_differences(first["config_classes"], second["config_classes"]),
    }
    merged["platform_overrides"] = {
        **first.get("platform_overrides", {}),
        platform: {kind: found for kind, found in overrides.items() if found},
    }
    merged["not_captured"] = _still_missing(merged)
    return merged


def _flag_differences(first: list[Fact], second: list[Fact]) -> Fact:
    here, there = ({flag["dest"]: flag for flag in flags} for flags in (first, second))
    return {
        dest: _changed(here.get(dest, {}), flag)
        for dest, flag in there.items()
        if flag != here.get(dest)
    }


def _field_differences(first: Fact, second: Fact) -> Fact:
    return {
        f"{cls}.{field}": _changed(fact, second[cls]["fields"][field])
        for cls in sorted(first.keys() & second.keys())
        for field, fact in first[cls]["fields"].items()
        if field in second[cls]["fields"] and second[cls]["fields"][field] != fact
    }


def _changed(here: Fact, there: Fact) -> Fact:
    """Give the members to set, and under `$without` those to drop."""
    changed = {k: v for k, v in there.items() if k not in here or here[k] != v}
    gone = sorted(here.keys() - there.keys())
    return {**changed, "$without": gone} if gone else changed


def _fill_matrix(merged: Fact, second: Fact) -> None:
    name = "attention_backend_matrix"
    rows = dict(merged["registries"].get(name, {}))
    for backend, row in second["registries"].get(name, {}).items():
        if not rows.get(backend):
            rows[backend] = row
    merged["registries"][name] = rows


def _fill_abilities(merged: Fact, second: Fact) -> None:
    """Take from the second what it could inspect and the first could not."""
    here, there = merged["model_abilities"], second["model_abilities"]
    gained = set(here.get("not_inspected", ())) - set(there.get("not_inspected", ()))
    abilities = {
        ability: sorted({*here.get(ability, ()), *(gained & set(there.get(ability, ())))})
        for ability in here.keys() | there.keys()
        if ability != "not_inspected"
    }
    abilities["not_inspected"] = sorted(set(here.get("not_inspected", ())) - gained)
    merged["model_abilities"] = dict(sorted(abilities.items()))


def _still_missing(merged: Fact) -> list[str]:
    """Drop the notes of what the second capture had."""
    missing = set(merged["model_abilities"]["not_inspected"])
    rows = merged["registries"]["attention_backend_matrix"]

    def holds(note: str) -> bool:
        if model := _MODEL_NOTE.match(note):
            return model[1] in missing
        if backend := _BACKEND_NOTE.match(note):
            return not rows.get(backend[1])
        return True

    return [note for note in merged["not_captured"] if holds(note)]
