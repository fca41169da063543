"""Writing changes into an object that came as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.kubernetes.manifest import Manifest, Path, PointedText
from app.kubernetes.paths import value_at, with_value_at
from app.proposal.changes import Change
from app.proposal.edit_text import assigned_in_text, edited_words
from app.proposal.positions import LineIndex, NestedText
from app.proposal.proposal import Proposal, Word


class JsonWriter:
    """Writes into one container of an object; the texts it gives are JSON.

    `container` is its path, `words` the path of each word of the command that is a string of its
    own, in order.
    """

    def __init__(self, manifest: Manifest, container: Path) -> None:
        self._manifest = manifest
        self._container = container

    def words(self, proposal: Proposal, change: Change) -> str | None:
        """Write changed words."""
        script = _script_of(proposal.text)
        if script is not None:
            return self._with(script.path, edited_words(proposal, change))
        spots = [self._spot(word) for word in proposal.words]
        if any(spot is None for spot in spots):
            return None
        data: Any = self._manifest.data
        # From the end, so that places before stay what they are.
        stop = next((i for i, w in enumerate(proposal.words) if w.text == "--"), len(spots))
        insertions = [(stop, change.added), (0, change.first)]
        for i in range(len(spots), -1, -1):
            for at, texts in insertions:
                if at == i and texts:
                    data = self._inserted(data, spots, i, [escaped(t, ()) for t in texts])
            if i > 0 and i - 1 in change.replaced:
                open_in = proposal.words[i - 1].unresolved
                texts = [escaped(text, open_in) for text in change.replaced[i - 1]]
                data = _spliced(data, spots[i - 1], 1, texts)
        return json.dumps(data)

    def set_variable(self, proposal: Proposal, name: str, value: str) -> str | None:
        """Write an environment variable."""
        script = _script_of(proposal.text)
        variable = proposal.environment.get(name)
        if script is not None and variable is not None and script.span(variable.location):
            return self._with(script.path, assigned_in_text(proposal, name, value))
        path: Path = (*self._container, "env")
        entries = self._manifest.at(path)
        entries = list(entries) if isinstance(entries, list) else []
        entry = {"name": name, "value": escaped(value, ())}
        for i, held in enumerate(entries):
            if isinstance(held, Mapping) and held.get("name") == name:
                entries[i] = entry
                return self._with(path, entries)
        return self._with(path, [*entries, entry])

    def unset_variable(self, proposal: Proposal, name: str) -> str | None:  # noqa: ARG002 - as in Writer
        """Take an environment variable out."""
        path: Path = (*self._container, "env")
        entries = self._manifest.at(path)
        if not isinstance(entries, list):
            return None
        rest = [e for e in entries if not (isinstance(e, Mapping) and e.get("name") == name)]
        return None if len(rest) == len(entries) else self._with(path, rest)

    def _inserted(self, data: Any, spots: list[Path | None], at: int, texts: list[str]) -> Any:
        if at < len(spots):
            return _spliced(data, spots[at], 0, texts)
        if spots and (last := spots[-1]) is not None:
            after: Path = (*last[:-1], int(last[-1]) + 1)
            return _spliced(data, after, 0, texts)
        return with_value_at(data, (*self._container, "args"), texts)

    def _with(self, path: Path, value: Any) -> str:
        return json.dumps(with_value_at(self._manifest.data, path, value))

    def _spot(self, word: Word) -> Path | None:
        """Give the path of the string that a word is; None if it is part of one."""
        pointer = word.location.pointer
        if pointer is None or word.location.line is not None:
            return None
        path = path_of(pointer)
        return path if isinstance(path[-1], int) else None


def path_of(pointer: str) -> Path:
    """Read a JSON pointer as a path; what is all digits is an index."""
    steps = (s.replace("~1", "/").replace("~0", "~") for s in pointer.split("/")[1:])
    return tuple(int(step) if step.isdecimal() else step for step in steps)


def _script_of(text: LineIndex | None) -> PointedText | None:
    """Give the string of the object that a script is written in."""
    while isinstance(text, NestedText):
        text = text.around
    return text if isinstance(text, PointedText) else None


def _spliced(data: Any, spot: Path | None, gone: int, texts: list[str]) -> Any:
    if spot is None:
        return data
    *holder, last = spot
    items = list(value_at(data, tuple(holder)))
    at = int(last)
    items[at : at + gone] = texts
    return with_value_at(data, tuple(holder), items)


def escaped(text: str, unresolved: tuple[str, ...]) -> str:
    """Write `$(` so that it stays what it is, unless it names a variable that is open here."""
    if any(f"$({name})" in text for name in unresolved):
        return text
    return text.replace("$(", "$$(")
