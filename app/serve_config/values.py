"""From the places that give a flag to its value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from packaging.version import Version

from app.catalogue import Catalogue, Flag
from app.catalogue.catalogue import Converter
from app.serve_config import absence
from app.serve_config.argparse_rules import argument_name
from app.serve_config.conversion import ConversionError, convert, expand_human_numbers
from app.serve_config.diagnostics import finding, shorten
from app.serve_config.serve_config import Origin, Setting, Unresolved
from app.serve_config.suggest import hint, nearest
from app.serve_config.tokens import Occurrence, Token
from app.verdict.finding import Finding
from app.verdict.fix import Fix, SetFlag

_POWER_OF_TWO: Final = re.compile(r"(1|2|4|8|16|32|64|128|256|512)[kmg]")
# `name=path` was split at every `=` before.
_SPLITS_ONCE: Final = Version("0.30.0")
_HUMAN: Final = frozenset({"human_readable_int", "human_readable_int_or_auto"})
_JSON: Final = frozenset({"json", "dataclass_json", "union_dict_and_str"})


@dataclass(slots=True)
class Values:
    """The settings that the command line and config file give, and what is wrong with them."""

    settings: dict[str, Setting] = field(default_factory=dict)
    occurrences: list[Occurrence] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_values(occurrences: Iterable[Occurrence], catalogue: Catalogue) -> Values:
    """Convert the words of each place; the last place of a flag wins."""
    values = Values()
    for occurrence in occurrences:
        given = replace(occurrence, value=_value(occurrence, catalogue, values.findings))
        values.occurrences.append(given)
    by_dest: dict[str, list[Occurrence]] = {}
    for occurrence in values.occurrences:
        by_dest.setdefault(occurrence.flag.dest, []).append(occurrence)
    for dest, places in by_dest.items():
        last = places[-1]
        value = last.value
        if last.flag.action == "AppendAction":
            value = [place.value for place in places]
            overridden: tuple[Any, ...] = ()
        else:
            overridden = tuple(place.location for place in places[:-1])
            _report_repeated(places, values.findings)
        _report_deprecated(last, value, values.findings, catalogue.vllm_version)
        values.settings[dest] = Setting(value, last.origin, last.location, overridden)
    return values


def default_value(flag: Flag) -> Any:
    """Give a flag's default; the default instance of a configuration class is an empty object."""
    default = flag.default
    if isinstance(default, Mapping):
        if "$suppress" in default:
            return None
        if "$dataclass" in default:
            return {}
        if "$enum" in default:
            return default.get("name")
    return default


def argument_converter(flag: Flag) -> Converter:
    """Give the converter that reads the words, without the wrapper for `None`."""
    converter = flag.converter
    while converter.name in {"optional", "valueerror_to_argerror"} and converter.of is not None:
        converter = converter.of
    return converter


def _value(occurrence: Occurrence, catalogue: Catalogue, findings: list[Finding]) -> Any:
    flag = occurrence.flag
    if flag.nargs == 0 and flag.negative_options:  # a switch of either class of action
        return occurrence.option_text not in flag.negative_options
    if flag.nargs == 0:
        return flag.const
    if flag.nargs == "?" and not occurrence.values:
        return flag.const
    read = [_convert(occurrence, token, catalogue, findings) for token in occurrence.values]
    if flag.action == "LoRAParserAction":
        return [
            _lora(item, token, findings, catalogue.version)
            for item, token in zip(read, occurrence.values, strict=True)
            if item not in (None, "")
        ]
    if flag.nargs in {None, "?"}:
        return read[0]
    opened = next((item for item in read if isinstance(item, Unresolved)), None)
    return read if opened is None else opened


def _convert(
    occurrence: Occurrence, token: Token, catalogue: Catalogue, findings: list[Finding]
) -> Any:
    flag = occurrence.flag
    inner = argument_converter(flag)
    if occurrence.explicit and token.text == "--":
        findings.append(
            finding(
                "cli-python-dependent",
                f"older Pythons drop the `--` after {flag.name}=, newer ones take it for the value",
                location=token.location,
                undecided=True,
            )
        )
        return Unresolved((), f"the value of {flag.name}")
    try:
        value = convert(flag.converter, token.text)
    except ConversionError as error:
        if token.unresolved:
            return Unresolved(token.unresolved, token.text)
        findings.append(_unconvertible(occurrence, token, error))
        return Unresolved((), f"a value of {flag.name}")
    if token.unresolved:
        if inner.name in _JSON and isinstance(value, dict | list):
            return _open_leaves(value, token.unresolved)
        return Unresolved(token.unresolved, token.text)
    if value is None and flag.converter.name == "optional" and token.text in {"", "None"}:
        findings.append(
            finding(
                "cli-value-unset",
                f"{token.text!r} leaves {flag.name} unset",
                location=token.location,
            )
        )
    if inner.expands_human_numbers and expand_human_numbers(token.text) != token.text:
        findings.append(
            finding(
                "cli-json-number",
                f"{flag.name} is read as {shorten(expand_human_numbers(token.text))}",
                location=token.location,
            )
        )
    choices = _choices(flag, catalogue)
    if choices is not None and value not in choices:
        findings.append(_not_a_choice(occurrence, token, value, choices))
        return Unresolved((), f"the value of {flag.name}")
    if inner.name in _HUMAN and _POWER_OF_TWO.fullmatch(token.text.strip()):
        findings.append(
            finding(
                "cli-decimal-suffix",
                f"{token.text} is {value}; {token.text.strip().upper()} would be "
                f"{convert(inner, token.text.strip().upper())}",
                location=token.location,
            )
        )
    return value


def _choices(flag: Flag, catalogue: Catalogue) -> list[Any] | None:
    """Give the choices, with those that another platform of the same version adds."""
    if flag.choices is None:
        return None
    choices = list(flag.choices)
    for platform in catalogue.platform_overrides.values():
        more = platform.get("flags", {}).get(flag.dest, {}).get("choices") or ()
        choices.extend(choice for choice in more if choice not in choices)
    return choices


def _not_a_choice(occurrence: Occurrence, token: Token, value: Any, choices: list[Any]) -> Finding:
    flag = occurrence.flag
    names = nearest(str(value), [str(choice) for choice in choices])
    listed = ", ".join(str(choice) for choice in choices)
    fix = None
    if names and isinstance(value, str):
        fix = Fix(f"use {names[0]}", (SetFlag(flag.dest, names[0]),), safe=False)
    quoted = ", ".join(repr(choice) for choice in choices)
    return finding(
        "cli-invalid-choice",
        f"{flag.name} must be one of {listed}; not {shorten(token.text)!r}{hint(names)}",
        location=token.location,
        fix=fix,
        engine_message=(
            f"argument {argument_name(flag)}: invalid choice: {shorten(repr(value))} "
            f"(choose from {quoted})"
        ),
        evidence={"value": shorten(token.text), "choices": choices},
    )


def _unconvertible(occurrence: Occurrence, token: Token, error: ConversionError) -> Finding:
    flag = occurrence.flag
    engine = error.engine and shorten(f"argument {argument_name(flag)}: {error.engine}", 400)
    return finding(
        "cli-invalid-value",
        f"{flag.name} {shorten(token.text)!r}: {shorten(error.message, 400)}",
        location=token.location,
        engine_message=engine,
    )


def _lora(item: Any, token: Token, findings: list[Finding], version: Version) -> Any:
    """Read `name=path` or a JSON object, as `LoRAParserAction` does."""
    if isinstance(item, Unresolved):
        return item
    pair = "=" in item and "," not in item
    if pair and (item.count("=") == 1 or version >= _SPLITS_ONCE):
        name, _, path = item.partition("=")
        return {"name": name, "path": path}
    try:
        value = json.loads(item)
    except (ValueError, RecursionError):
        value = None
        engine = f"Invalid JSON format for --lora-modules: {shorten(item)}"
    else:
        engine = f"Invalid fields for --lora-modules: {shorten(item)}"
    known = {"name", "path", "base_model_name", "is_3d_lora_weight"}
    if pair:  # split at every `=`
        value, engine = None, "too many values to unpack (expected 2)"
    if isinstance(value, dict) and {"name", "path"} <= value.keys() <= known:
        return value
    findings.append(
        finding(
            "cli-invalid-value",
            f'--lora-modules takes name=path, or JSON such as {{"name": "a", "path": "b"}}; '
            f"not {shorten(item)!r}",
            location=token.location,
            engine_message=engine,
        )
    )
    return Unresolved((), "the value of --lora-modules")


def _open_leaves(value: Any, names: tuple[str, ...]) -> Any:
    """Mark the strings in which an unresolved variable stands."""
    if isinstance(value, dict):
        return {key: _open_leaves(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_open_leaves(item, names) for item in value]
    if isinstance(value, str):
        inside = tuple(n for n in names if any(f"{mark}{n}" in value for mark in ("$", "${", "")))
        if inside:
            return Unresolved(inside, value)
    return value


def _report_repeated(places: list[Occurrence], findings: list[Finding]) -> None:
    last = places[-1]
    name = last.flag.name
    for earlier in places[:-1]:
        dotted = last.token.dotted or earlier.token.dotted
        if earlier.origin is Origin.CONFIG_FILE and last.origin is Origin.ARGV:
            findings.append(
                finding(
                    "yaml-overridden",
                    f"{name} is on the command line too, which wins",
                    location=earlier.location,
                    related=(last.location,),
                )
            )
        elif dotted and earlier.origin is last.origin:
            findings.append(
                finding(
                    "cli-json-overwritten",
                    f"this value of {name} is lost: the keys given as "
                    f"{last.token.text}.… replace it whole",
                    location=earlier.location,
                    related=(last.location,),
                )
            )
        elif earlier.value != last.value:
            joined = "; the values are not joined" if last.flag.nargs == "+" else ""
            findings.append(
                finding(
                    "cli-repeated-flag",
                    f"{name} is given again later, and the last one wins{joined}",
                    location=earlier.location,
                    related=(last.location,),
                )
            )


def _report_deprecated(
    place: Occurrence, value: Any, findings: list[Finding], version: str
) -> None:
    flag = place.flag
    if flag.deprecated and value != default_value(flag):
        said = f": {flag.deprecated}" if isinstance(flag.deprecated, str) else ""
        since = absence.deprecated_since(flag.dest)
        said = f"{f' since {since}' if since else ''}{said}"
        gone = absence.gone_from(flag.dest, version)
        if gone is not None:
            instead = f", which has {gone.replacement} in its place" if gone.replacement else ""
            said += f" and gone from {gone.gone} on{instead}"
        findings.append(
            finding(
                "cli-deprecated-flag",
                f"{flag.name} is deprecated{said}",
                location=place.token.location,
                engine_message=f"argument '{flag.dest}' is deprecated",
            )
        )
