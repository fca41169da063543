"""Edits of a `--config` file: of its text, so that comments and layout stay."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any, Final

import yaml

from app.catalogue import Catalogue, Flag
from app.errors import MalformedDocument
from app.proposal.config_yaml import ConfigDocument, ConfigEntry, parse_config_yaml, read_config
from app.proposal.nested import with_value, without
from app.proposal.proposal import Proposal, YamlFile
from app.serve_config.option_table import option_table
from app.verdict.fix import Edit, RemoveFlag, ReplaceArgument, SetFlag

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][\w./+-]*")


def edit_yaml(proposal: Proposal, edit: Edit, catalogue: Catalogue) -> Proposal:
    """Apply one edit to a proposal that is a config file."""
    file = proposal.yaml or YamlFile("config_yaml", "")
    text = edit_config_text(file.text, file.name, edit, catalogue)
    if text == file.text:
        return proposal
    edited = parse_config_yaml(text, source=file.name)
    return replace(proposal, yaml=edited.yaml, source=edited.source)


def edit_config_text(text: str, name: str, edit: Edit, catalogue: Catalogue) -> str:
    """Apply one edit to the text of a config file; one that would break it changes nothing."""
    edited = _Editor(text, name, catalogue).apply(edit)
    try:
        read_config(edited, name)
    except MalformedDocument:  # such as an alias whose anchor went with the edited value
        return text
    return edited


class _Editor:
    def __init__(self, text: str, name: str, catalogue: Catalogue) -> None:
        self._text = text
        self._catalogue = catalogue
        self._document: ConfigDocument = read_config(text, name)
        self._table = option_table(catalogue)

    def apply(self, edit: Edit) -> str:
        if self._document.kind not in {"mapping", "empty"}:
            return self._text
        if isinstance(edit, ReplaceArgument):
            return self._rename(edit)
        if isinstance(edit, SetFlag):
            dest, *path = edit.dest.split(".")
            return self._set(dest, path, edit.value)
        if isinstance(edit, RemoveFlag):
            dest, *path = edit.dest.split(".")
            return self._remove(dest, path)
        return self._text

    def _entries(self, dest: str) -> list[ConfigEntry]:
        return [e for e in self._document.entries if self._dest(e) == dest]

    def _dest(self, entry: ConfigEntry) -> str | None:
        match = self._table.classify(f"--{str(entry.key).replace('_', '-')}")
        return match.flag.dest if match is not None and match.flag is not None else None

    def _rename(self, edit: ReplaceArgument) -> str:
        key = str(edit.at).removeprefix("/").replace("~1", "/").replace("~0", "~")
        entry = next((e for e in self._document.entries if str(e.key) == key), None)
        if entry is None:
            return self._text
        end = entry.start + len(self._written_key(entry))
        return self._splice(entry.start, end, edit.text)

    def _written_key(self, entry: ConfigEntry) -> str:
        span = self._document.index.span(entry.key_location)
        return self._text[span[0] : span[1]] if span is not None else str(entry.key)

    def _set(self, dest: str, path: list[str], value: Any) -> str:
        flag = self._catalogue.by_dest.get(dest)
        entries = self._entries(dest)
        entry = entries[-1] if entries else None
        if flag is not None and flag.nargs == 0 and not path:
            return self._set_switch(flag, entry, value=bool(value))
        if entry is None:
            whole = with_value({}, path, value) if path else value
            return self._append(self._new_key(flag, dest), _yaml_value(whole))
        if not path:
            return self._set_value(entry, _yaml_value(value))
        if (span := self._document.scalar_span(entry, path)) is not None:
            return self._splice(*span, _yaml_value(value))
        if isinstance(entry.value, str):
            whole = with_value(_loaded(entry.value), path, value)
            return self._set_value(entry, json.dumps(json.dumps(whole)))
        return self._set_value(entry, _yaml_value(with_value(entry.value, path, value)))

    def _set_switch(self, flag: Flag, entry: ConfigEntry | None, *, value: bool) -> str:
        key = self._new_key(flag, flag.dest) if value else self._negative_key(flag)
        if key is None:  # a switch without a negative form
            return self._remove(flag.dest, [])
        if entry is None:
            return self._append(key, "true")
        if "_" in self._written_key(entry):
            key = key.replace("-", "_")
        return self._splice(entry.start, self._value_end(entry), f"{key}: true")

    def _new_key(self, flag: Flag | None, dest: str) -> str:
        name = flag.name if flag is not None else f"--{dest.replace('_', '-')}"
        return name.removeprefix("--")

    def _negative_key(self, flag: Flag) -> str | None:
        named = (o for o in flag.negative_options if o.startswith("--"))
        option = next(named, None)
        return None if option is None else option.removeprefix("--")

    def _remove(self, dest: str, path: list[str]) -> str:
        entries = self._entries(dest)
        if not entries:
            return self._text
        entry = entries[-1]
        if path:
            whole = entry.value if not isinstance(entry.value, str) else _loaded(entry.value)
            rest = without(whole, path)
            if rest == whole:
                return self._text
            if rest:
                text = _yaml_value(rest)
                return self._set_value(
                    entry, json.dumps(text) if isinstance(entry.value, str) else text
                )
        if self._is_flow():
            kept = {e.key: e.value for e in self._document.entries if self._dest(e) != dest}
            return yaml.safe_dump(kept, default_flow_style=True, sort_keys=False, width=math.inf)
        text = self._text
        for found in reversed(entries):
            start = text.rfind("\n", 0, found.start) + 1
            end = text.find("\n", self._value_end(found))
            text = text[:start] + (text[end + 1 :] if end >= 0 else "")
        return text

    def _set_value(self, entry: ConfigEntry, value: str) -> str:
        start = entry.value_start
        colon = self._text.rfind(":", entry.start, start)
        if "\n" in self._text[colon:start]:  # a block that begins on the next line
            return self._splice(colon, self._value_end(entry), f": {value}")
        return self._splice(start, self._value_end(entry), value)

    def _value_end(self, entry: ConfigEntry) -> int:
        end = entry.value_end
        return max(entry.value_start, len(self._text[:end].rstrip()))

    def _append(self, key: str, value: str) -> str:
        if self._document.kind == "empty":
            break_before = "" if not self._text or self._text.endswith("\n") else "\n"
            return f"{self._text}{break_before}{key}: {value}\n"
        start, end = self._span()
        if self._is_flow():
            before = self._text[: end - 1].rstrip()
            comma = "" if before.endswith((",", "{")) else ", "
            return self._splice(end - 1, end - 1, f"{comma}{key}: {value}")
        # Below the last key and as far in, before a `...` that ends the document.
        indent = " " * (start - self._text.rfind("\n", 0, start) - 1)
        line_end = "\r\n" if "\r\n" in self._text else "\n"
        return self._splice(end, end, f"{line_end}{indent}{key}: {value}")

    def _span(self) -> tuple[int, int]:
        """The offsets of the top-level mapping, without blanks after it."""
        return self._document.index.span(self._document.location) or (0, len(self._text))

    def _is_flow(self) -> bool:
        return self._document.kind == "mapping" and self._text.startswith("{", self._span()[0])

    def _splice(self, start: int, end: int, new: str) -> str:
        return self._text[:start] + new + self._text[end:]


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {}


def _yaml_value(value: Any) -> str:
    """Write a value so that PyYAML reads it back; JSON is YAML except for odd floats."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    if isinstance(value, float):
        return yaml.safe_dump(value).removesuffix("\n...\n").strip()
    return json.dumps(value)
