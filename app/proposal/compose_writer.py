"""Writing changes into a compose file, in the style that it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.proposal.changes import Change
from app.proposal.compose_words import interpolate
from app.proposal.edit_text import assigned_in_text, edited_words
from app.proposal.positions import LineIndex
from app.proposal.proposal import Proposal, Word
from app.proposal.yaml_entries import Entries
from app.proposal.yaml_text import scalar_text, written

_QUOTES: Final = frozenset({"'", '"'})


class ComposeWriter:
    """Writes into one service of a compose file."""

    def __init__(
        self, index: LineIndex, service: MappingNode, variables: Mapping[str, str] | None
    ) -> None:
        """Keep where the service stands; `variables` are those of `.env`."""
        self._index = index
        self._service = service
        self._variables = variables

    def words(self, proposal: Proposal, change: Change) -> str | None:
        """Write changed words."""
        if proposal.text is not self._index:  # a script in the command
            return edited_words(proposal, change)
        node = self._holder(proposal)
        if node is None:
            listed = [_escaped(text, ()) for text, _ in change.applied(proposal.words)]
            return self._new_key("command", f"[{', '.join(listed)}]")
        if isinstance(node, ScalarNode):
            text = interpolate(scalar_text(self._index, node), self._variables).text
            return edited_words(replace(proposal, text=text), change)
        return self._items(proposal, change, node)

    def _holder(self, proposal: Proposal) -> Any:
        """Give the node that the words are written in."""
        command, entrypoint = self._child("command"), self._child("entrypoint")
        if not proposal.words:
            return command
        span = self._index.span(proposal.words[0].location)
        for node in (command, entrypoint):
            if node is not None and span is not None:
                start, end = node.start_mark.index, node.end_mark.index
                if start <= span[0] and span[1] <= end:
                    return node
        return None

    def _items(self, proposal: Proposal, change: Change, node: SequenceNode) -> str | None:
        entries = Entries(self._index.text, node)
        starts = {start: number for number, (start, _) in enumerate(entries.spans)}
        numbers = [self._number(word, starts) for word in proposal.words]
        for i, texts in change.replaced.items():
            if i >= len(numbers) or numbers[i] is None:
                return None
            quotes = node.value[numbers[i]].style in _QUOTES
            word = proposal.words[i]
            entries.replace(numbers[i] or 0, [_escaped(t, word.unresolved, quotes) for t in texts])
        quoted = bool(node.value) and all(item.style in _QUOTES for item in node.value)
        stop = next((i for i, w in enumerate(proposal.words) if w.text == "--"), None)
        before = None if stop is None else numbers[stop]
        entries.add([_escaped(text, (), quoted) for text in change.added], before=before)
        if change.first:
            first = numbers[0] if numbers else None
            entries.add([_escaped(text, (), quoted) for text in change.first], before=first)
        return entries.edited()

    def _number(self, word: Word, starts: Mapping[int, int]) -> int | None:
        span = self._index.span(word.location)
        return None if span is None else starts.get(span[0])

    # environment

    def set_variable(self, proposal: Proposal, name: str, value: str) -> str | None:
        """Write an environment variable."""
        number, node = self._variable(proposal, name)
        text = value.replace("$", "$$")
        if number is None and name in proposal.environment and self._in_script(proposal, name):
            return assigned_in_text(proposal, name, value)
        if isinstance(node, MappingNode):
            entries = Entries(self._index.text, node)
            entry = f"{name}: {written(text, quoted=True)}"
            if number is None:
                entries.add([entry])
            else:
                entries.replace(number, [entry])
            return entries.edited()
        if isinstance(node, SequenceNode):
            entries = Entries(self._index.text, node)
            entry = written(f"{name}={text}")
            if number is None:
                entries.add([entry])
            else:
                entries.replace(number, [entry])
            return entries.edited()
        indent = self._indent()
        return self._new_key(
            "environment", f"\n{indent}  {name}: {written(text, quoted=True)}", spaced=False
        )

    def unset_variable(self, proposal: Proposal, name: str) -> str | None:
        """Take an environment variable out."""
        number, node = self._variable(proposal, name)
        if number is None or node is None:
            return None
        entries = Entries(self._index.text, node)
        entries.replace(number, [])
        return entries.edited() if len(entries.spans) > 1 else self._without_key("environment")

    def _in_script(self, proposal: Proposal, name: str) -> bool:
        text = proposal.text
        place = proposal.environment[name].location
        return text is not self._index and text is not None and text.span(place) is not None

    def _variable(
        self, proposal: Proposal, name: str
    ) -> tuple[int | None, MappingNode | SequenceNode | None]:
        """Give the entry that sets a variable, and the node of all of them."""
        node = self._child("environment")
        variable = proposal.environment.get(name)
        span = None if variable is None else self._index.span(variable.location)
        if isinstance(node, MappingNode | SequenceNode):
            for number, (start, _) in enumerate(Entries(self._index.text, node).spans):
                if span is not None and start == span[0]:
                    return number, node
            return None, node
        return None, None

    # keys of the service

    def _child(self, key: str) -> Any:
        found = [v for k, v in self._service.value if getattr(k, "value", None) == key]
        return found[-1] if found else None

    def _indent(self) -> str:
        first: Node = self._service.value[0][0]
        start = first.start_mark.index
        return " " * (start - self._index.text.rfind("\n", 0, start) - 1)

    def _new_key(self, key: str, value: str, *, spaced: bool = True) -> str | None:
        if self._service.flow_style:
            return None
        entries = Entries(self._index.text, self._service)
        entries.add([f"{key}:{' ' if spaced else ''}{value}"])
        return entries.edited()

    def _without_key(self, key: str) -> str | None:
        entries = Entries(self._index.text, self._service)
        for number, (name, _) in enumerate(self._service.value):
            if name.value == key:
                entries.replace(number, [])
        return entries.edited()


def _escaped(text: str, unresolved: tuple[str, ...], quoted: bool = False) -> str:
    """Write a word as a YAML scalar; `$` is doubled except where it names a variable."""
    if not any(name in text for name in unresolved):
        text = text.replace("$", "$$")
    return written(text, quoted=quoted)
