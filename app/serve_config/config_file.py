"""The `--config` file as the words that vLLM makes of it.

Source: `vllm/utils/argparse_utils.py::FlexibleArgumentParser.load_config_file`.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from app.errors import MalformedDocument, PayloadTooLarge
from app.proposal.config_yaml import ConfigDocument, ConfigEntry, read_config
from app.proposal.envelope import escape_pointer
from app.serve_config.diagnostics import finding
from app.serve_config.serve_config import Origin
from app.serve_config.tokens import Token
from app.verdict.finding import Finding
from app.verdict.fix import Fix, ReplaceArgument
from app.verdict.location import Location


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A config file turned into words; `broken` says why vLLM cannot use it at all.

    `alone` is true for a proposal that is nothing but this file.
    """

    name: str
    tokens: tuple[Token, ...]
    findings: tuple[Finding, ...]
    document: ConfigDocument | None
    location: Location
    alone: bool
    broken: Finding | None = None


def read_config_file(
    text: str, name: str, named_at: Location, options: Iterable[str], *, alone: bool
) -> ConfigFile:
    """Read a config file.

    `options` are the option strings among which a `false` looks for its `--no-` form: none
    under `vllm serve`, where vLLM looks in the wrong parser.
    """
    try:
        document = read_config(text, name)
    except (MalformedDocument, PayloadTooLarge) as error:
        broken = _unreadable(error, name, named_at)
        return ConfigFile(name, (), (), None, named_at, alone, broken)
    if document.kind != "mapping":
        broken = finding(
            "yaml-not-a-mapping",
            f"the config file is {_KINDS[document.kind]}; vLLM needs `option: value` lines",
            location=document.location,
            engine_message=f"'{_PYTHON_TYPES[document.kind]}' object has no attribute 'items'",
        )
        return ConfigFile(name, (), (), document, document.location, alone, broken)
    reader = _Reader(document, frozenset(options))
    for entry in document.entries:
        reader.add(entry)
    for place in document.repeated:
        reader.repeated(place)
    return ConfigFile(
        name,
        tuple(reader.tokens),
        tuple(reader.findings),
        document,
        document.location,
        alone,
        reader.broken,
    )


_KINDS = {"empty": "empty", "list": "a list", "scalar": "a bare value"}
_PYTHON_TYPES = {"empty": "NoneType", "list": "list", "scalar": "str"}


class _Reader:
    def __init__(self, document: ConfigDocument, options: Container[str]) -> None:
        self.tokens: list[Token] = []
        self.findings: list[Finding] = []
        self.broken: Finding | None = None
        self._document = document
        self._options = options

    def add(self, entry: ConfigEntry) -> None:
        """Append the words of one key."""
        key, value = entry.key, entry.value
        for place in entry.overridden:
            self.repeated(place, winner=entry.key_location)
        if not isinstance(key, str):
            self.broken = self.broken or finding(
                "yaml-invalid-key",
                f"the key {key!r} is no text; quote it",
                location=entry.key_location,
                engine_message=(f'can only concatenate str (not "{type(key).__name__}") to str'),
            )
            return
        option = Token(f"--{key}", entry.key_location, origin=Origin.CONFIG_FILE)
        if isinstance(value, bool):
            if value:
                self.tokens.append(option)
            elif (negative := f"--no-{key}") in self._options:
                self.tokens.append(replace(option, text=negative, written=option.text))
            else:
                self._ignored_false(entry, key)
        elif isinstance(value, list):
            if value:
                self.tokens.append(option)
                self.tokens.extend(
                    Token(
                        str(item),
                        self._document.locate(entry, (i,)),
                        origin=Origin.CONFIG_FILE,
                    )
                    for i, item in enumerate(value)
                )
            else:
                self.findings.append(
                    finding(
                        "yaml-empty-list",
                        f"vLLM drops the empty list; {key} keeps its default",
                        location=entry.location,
                    )
                )
        elif isinstance(value, dict):
            self._mapping(entry, option)
        else:
            text = Token(str(value), entry.location, origin=Origin.CONFIG_FILE)
            self.tokens.extend((option, text))

    def repeated(self, place: Location, *, winner: Location | None = None) -> None:
        """Tell of a key given twice."""
        self.findings.append(
            finding(
                "yaml-repeated-key",
                f"{place.text!r} is given more than once; the last one wins",
                location=place,
                related=() if winner is None else (winner,),
            )
        )

    def _mapping(self, entry: ConfigEntry, option: Token) -> None:
        try:
            text = json.dumps(entry.value)
        except (TypeError, ValueError) as error:
            self.broken = self.broken or finding(
                "yaml-invalid-key",
                f"vLLM writes this as JSON, which it cannot be: {error}",
                location=entry.location,
                engine_message=str(error),
            )
            return
        self.tokens.append(option)
        self.tokens.append(Token(text, entry.location, origin=Origin.CONFIG_FILE))

    def _ignored_false(self, entry: ConfigEntry, key: str) -> None:
        separator = "_" if "_" in key else "-"
        self.findings.append(
            finding(
                "yaml-false-ignored",
                f"vLLM ignores this: `{key}: false` leaves the setting at its default; write "
                f"`no{separator}{key}: true`",
                location=entry.location,
                evidence={"key": key},
            )
        )


def _unreadable(
    error: MalformedDocument | PayloadTooLarge, name: str, named_at: Location
) -> Finding:
    problem = error.problems[0] if error.problems else None
    location = named_at
    if problem is not None and problem.line is not None:
        location = Location(source=name, line=problem.line, column=problem.column)
    detail = problem.detail if problem is not None else error.detail
    return finding("yaml-unreadable", f"the config file is not YAML: {detail}", location=location)


def rename_key(path: tuple[str, ...], text: str, description: str, *, safe: bool) -> Fix:
    """Give the fix that renames the key to which `path` leads."""
    pointer = "".join(f"/{escape_pointer(step)}" for step in path)
    return Fix(description, (ReplaceArgument(pointer, text),), safe)
