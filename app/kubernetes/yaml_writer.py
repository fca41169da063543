"""Writing changes into a container of a YAML manifest, in the layout that it is written in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.kubernetes.json_writer import escaped, path_of
from app.kubernetes.manifest import Path, YamlPlaces
from app.kubernetes.yaml_edit import flow, is_json
from app.proposal.changes import Change
from app.proposal.edit_text import assigned_in_text, edited_words
from app.proposal.positions import NestedText
from app.proposal.proposal import Proposal, Word
from app.proposal.yaml_entries import Entries
from app.proposal.yaml_text import written

_QUOTES: Final = frozenset({"'", '"'})


class YamlWriter:
    """Writes into one container; the texts it gives are the whole stream of manifests."""

    def __init__(self, places: YamlPlaces, container: Path) -> None:
        """Keep where the container stands."""
        self._places = places
        self._container = container

    def words(self, proposal: Proposal, change: Change) -> str | None:
        """Write changed words."""
        if isinstance(proposal.text, NestedText):  # a script in one of them
            return edited_words(proposal, change)
        if not proposal.words:
            return self._with_key("args", [escaped(text, ()) for text, _ in change.applied(())])
        spots = [self._spot(word) for word in proposal.words]
        lists: dict[int, _List] = {}
        for spot, word in zip(spots, proposal.words, strict=True):
            if spot is None or word.location.pointer is None:
                return None
            key = self._key(path_of(word.location.pointer)[:-1])
            lists.setdefault(spot[0].start_mark.index, _List(spot[0], key))
        known = [spot for spot in spots if spot is not None]
        for i, texts in change.replaced.items():
            node, number = known[i]
            lists[node.start_mark.index].replaced[number] = (texts, proposal.words[i])
        stop = next((i for i, w in enumerate(proposal.words) if w.text == "--"), None)
        node, number = known[-1] if stop is None else known[stop]
        lists[node.start_mark.index].added.append((change.added, None if stop is None else number))
        node, number = known[0]
        lists[node.start_mark.index].added.append((change.first, number))
        text = self._places.index.text
        # From the end, so that what stands before keeps its place.
        for _, found in sorted(lists.items(), reverse=True):
            text = found.edited(text)
        return text

    def set_variable(self, proposal: Proposal, name: str, value: str) -> str | None:
        """Write an environment variable."""
        variable = proposal.environment.get(name)
        nested = proposal.text
        if (
            isinstance(nested, NestedText)
            and variable is not None
            and nested.span(variable.location)
        ):
            return assigned_in_text(proposal, name, value)
        entries = self._places.node((*self._container, "env"))
        if self._places.is_shared(entries):
            return None
        shown = written(escaped(value, ()), quoted=True)
        if not isinstance(entries, SequenceNode):
            return self._with_key("env", [{"name": name, "value": escaped(value, ())}])
        number = _named(entries, name)
        edit = Entries(self._places.index.text, entries)
        if number is None:
            edit.add([self._entry(name, shown)])
            return edit.edited()
        node = _child(entries.value[number], "value")
        if not isinstance(node, ScalarNode):
            return None
        text = self._places.index.text
        start, end = node.start_mark.index, node.end_mark.index
        return f"{text[:start]}{shown}{text[end:]}" if start < end else None

    def unset_variable(self, proposal: Proposal, name: str) -> str | None:  # noqa: ARG002 - as in Writer
        """Take an environment variable out."""
        entries = self._places.node((*self._container, "env"))
        number = _named(entries, name) if isinstance(entries, SequenceNode) else None
        shared = self._places.is_shared(entries)
        if shared or number is None or not isinstance(entries, SequenceNode):
            return None
        text = self._places.index.text
        if len(entries.value) == 1:
            return _emptied(text, self._key((*self._container, "env")), entries)
        edit = Entries(text, entries)
        edit.replace(number, [])
        return edit.edited()

    def _key(self, path: Path) -> Node:
        """Give the key that a value is written after."""
        pairs: list[tuple[Node, Node]] = getattr(self._places.node(path[:-1]), "value", [])
        return next(key for key, _ in reversed(pairs) if key.value == path[-1])

    def _spot(self, word: Word) -> tuple[SequenceNode, int] | None:
        """Give the list and the number in it that a word stands at."""
        if word.location.pointer is None:
            return None
        *holder, last = path_of(word.location.pointer)
        node = self._places.node(tuple(holder))
        shared = self._places.is_shared(node)
        if shared or not isinstance(node, SequenceNode) or not isinstance(last, int):
            return None
        return node, last

    def _entry(self, name: str, shown: str) -> str:
        if is_json(self._places.index.text):
            return f'{{"name": {json.dumps(name)}, "value": {shown}}}'
        return f"{{name: {name}, value: {shown}}}"

    def _with_key(self, key: str, value: list[Any]) -> str | None:
        container = self._places.node(self._container)
        if not isinstance(container, MappingNode) or _child(container, key) is not None:
            return None
        edit = Entries(self._places.index.text, container)
        text = self._places.index.text
        edit.add([f"{flow(key, text=text)}: {flow(value, text=text)}"])
        return edit.edited()


class _List:
    """A list of words, and what is to be changed in it."""

    def __init__(self, node: SequenceNode, key: Node) -> None:
        self._node = node
        self._key = key
        self.replaced: dict[int, tuple[list[str], Word]] = {}
        self.added: list[tuple[list[str], int | None]] = []

    def edited(self, text: str) -> str:
        entries = Entries(text, self._node)
        items = self._node.value
        if len(self.replaced) == len(items) and not any(t for t, _ in self.replaced.values()):
            quoted = is_json(text)
            added = [_item(t, (), quoted=quoted) for texts, _ in self.added for t in texts]
            return _emptied(text, self._key, self._node, added)
        for number, (texts, word) in self.replaced.items():
            quoted = _is_quoted(items[number])
            entries.replace(number, [_item(t, word.unresolved, quoted=quoted) for t in texts])
        quoted = bool(items) and all(map(_is_quoted, items))
        for texts, before in self.added:
            entries.add([_item(t, (), quoted=quoted) for t in texts], before=before)
        return entries.edited()


def _is_quoted(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style in _QUOTES


def _item(text: str, unresolved: tuple[str, ...], *, quoted: bool = False) -> str:
    return written(escaped(text, unresolved), quoted=quoted)


def _named(entries: SequenceNode, name: str) -> int | None:
    for number, entry in enumerate(entries.value):
        held = _child(entry, "name")
        if isinstance(held, ScalarNode) and held.value == name:
            return number
    return None


def _emptied(text: str, key: Node, node: SequenceNode, items: Sequence[str] = ()) -> str:
    """Write a list anew: what is left of one without its items is no YAML in every layout."""
    end = len(text[: node.end_mark.index].rstrip())
    return f"{text[: key.end_mark.index]}: [{', '.join(items)}]{text[end:]}"


def _child(node: Node, key: str) -> Node | None:
    if not isinstance(node, MappingNode):
        return None
    found = [value for name, value in node.value if getattr(name, "value", None) == key]
    return found[-1] if found else None
