"""Writing edits of a made-up server into the custom resource that describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from app.errors import AdmissionError
from app.kubernetes.json_writer import escaped
from app.kubernetes.manifest import Manifest, Path, PointedText, YamlPlaces
from app.kubernetes.paths import value_at, with_value_at, without_at
from app.kubernetes.placed import MappedPlaces, Plan, Role, Slot
from app.kubernetes.yaml_edit import edited_yaml
from app.proposal.changes import Change
from app.proposal.edit_text import edited_words
from app.proposal.positions import LineIndex, NestedText
from app.proposal.proposal import Proposal, Word
from app.proposal.quoting import quote
from app.proposal.shell import parse_command


class MadeWriter:
    """Writes into the resource that `places` were made from; gives all of its text.

    Words that the resource does not say (a runtime in another object, what a controller works out)
    cannot be edited: such an edit gives None.
    """

    def __init__(self, places: MappedPlaces) -> None:
        """Keep the plan of the made-up server."""
        self._original = places.original
        self._plan = places.plan

    def words(self, proposal: Proposal, change: Change) -> str | None:
        """Write changed words."""
        if isinstance(proposal.text, NestedText | PointedText):  # the text of a script
            return self._script(proposal, change)
        data: Any = self._original.data
        of_command = len(proposal.words) - len(self._plan.slots)
        if of_command < 0 or change.first or any(w.text == "--" for w in proposal.words):
            return None
        slots = [*[None] * of_command, *self._plan.slots]
        if any(slots[i] is None for i in change.replaced):
            return None
        added = [escaped(text, ()) for text in change.added]
        for (_, holder), group in groupby(enumerate(slots), key=_of_one):
            numbers = [i for i, _ in group]
            if holder is None:
                continue
            more = change.added if holder == self._plan.text else []
            data = _Held(data, holder, slots, proposal.words, change).written(numbers, more)
            if data is None:
                return None
            if more:
                added = []
        if added:
            data = _with_words(data, self._plan, added)
        return None if data is None else written_into(self._original, data)

    def _script(self, proposal: Proposal, change: Change) -> str | None:
        """Write changed words of a script that stands in the resource as it is run."""
        outermost: LineIndex | None = proposal.text
        while isinstance(outermost, NestedText):
            outermost = outermost.around
        if isinstance(outermost, PointedText):
            edited = with_value_at(
                self._original.data, outermost.path, edited_words(proposal, change)
            )
            return written_into(self._original, edited)
        places = self._original.places
        whole = isinstance(places, YamlPlaces) and outermost is places.index
        return edited_words(proposal, change) if whole else None

    def set_variable(self, proposal: Proposal, name: str, value: str) -> str | None:  # noqa: ARG002 - as in Writer
        """Write an environment variable."""
        path = self._plan.variables
        if path is None:
            return None
        held = self._original.at(path)
        text = escaped(value, ())
        if self._plan.named:
            held = dict(held) if isinstance(held, Mapping) else {}
            return self._with(path, {**held, name: text})
        entries = list(held) if isinstance(held, list) else []
        entry = {"name": name, "value": text}
        found = next((i for i, e in enumerate(entries) if _names(e, name)), None)
        if found is None:
            return self._with(path, [*entries, entry])
        entries[found] = entry
        return self._with(path, entries)

    def unset_variable(self, proposal: Proposal, name: str) -> str | None:  # noqa: ARG002 - as in Writer
        """Take an environment variable out."""
        path = self._plan.variables
        held = None if path is None else self._original.at(path)
        if path is None or held is None:
            return None
        rest: Any
        if isinstance(held, Mapping):
            rest = {key: value for key, value in held.items() if key != name}
        else:
            rest = [entry for entry in held if not _names(entry, name)]
        return None if len(rest) == len(held) else self._with(path, rest)

    def _with(self, path: Path, value: Any) -> str:
        return written_into(self._original, with_value_at(self._original.data, path, value))


def _of_one(numbered: tuple[int, Slot | None]) -> tuple[bool, Path | None]:
    """Tell words apart by what holds them: a list, a key, a string."""
    slot = numbered[1]
    if slot is None:
        return False, None
    return True, slot.path[:-1] if slot.role is Role.ITEM else slot.path


class _Held:
    """The words of one list, key or string of the resource."""

    def __init__(
        self,
        data: Any,
        holder: Path,
        slots: Sequence[Slot | None],
        words: Sequence[Word],
        change: Change,
    ) -> None:
        self._data = data
        self._holder = holder
        self._slots = slots
        self._words = words
        self._change = change

    def written(self, numbers: Sequence[int], added: Sequence[str]) -> Any:
        """Give the data with the change of these words; None where it cannot be written."""
        replaced = {i: self._change.replaced[i] for i in numbers if i in self._change.replaced}
        if not replaced and not added:
            return self._data
        role = next(slot.role for slot in (self._slots[i] for i in numbers) if slot is not None)
        if role is Role.ITEM:
            return self._items(replaced)
        if role is Role.TEXT:
            return self._text(numbers, replaced, added)
        if role is Role.SWITCH:
            return self._switch(numbers[0], replaced)
        return self._value(numbers, replaced)

    def _items(self, replaced: Mapping[int, list[str]]) -> Any:
        items = list(value_at(self._data, self._holder))
        for i in sorted(replaced, reverse=True):
            slot = self._slots[i]
            at = 0 if slot is None else int(slot.path[-1])
            texts = [escaped(text, self._words[i].unresolved) for text in replaced[i]]
            items[at : at + 1] = texts
        return with_value_at(self._data, self._holder, items)

    def _value(self, numbers: Sequence[int], replaced: Mapping[int, list[str]]) -> Any:
        """Change the value of a key, or take the key out; its option has no other spelling."""
        if all(replaced.get(i) == [] for i in numbers):
            return without_at(self._data, self._holder)
        value = replaced.get(numbers[-1])
        if set(replaced) != {numbers[-1]} or value is None or len(value) != 1:
            return None
        old = value_at(self._data, self._holder)
        return with_value_at(self._data, self._holder, _like(old, escaped(value[0], ())))

    def _switch(self, number: int, replaced: Mapping[int, list[str]]) -> Any:
        slot = self._slots[number]
        texts = replaced[number]
        if not texts:
            return without_at(self._data, self._holder)
        if slot is None or len(texts) != 1 or texts[0] not in slot.options:
            return None
        return with_value_at(self._data, self._holder, texts[0] == slot.options[0])

    def _text(
        self, numbers: Sequence[int], replaced: Mapping[int, list[str]], added: Sequence[str]
    ) -> Any:
        """Change words of a string that a shell splits; its other words stay as they are."""
        string = value_at(self._data, self._holder)
        try:
            within = parse_command(string)
        except AdmissionError:
            return None
        if [w.text for w in within.words] != [self._words[i].text for i in numbers]:
            return None
        own = {
            k: [escaped(text, self._words[i].unresolved) for text in replaced[i]]
            for k, i in enumerate(numbers)
            if i in replaced
        }
        more = [escaped(text, ()) for text in added]
        if len(own) == len(numbers) and not any(own.values()):
            new = " ".join(map(quote, more))
        else:
            new = edited_words(within, Change(own, more))
        return with_value_at(self._data, self._holder, new)


def _with_words(data: Any, plan: Plan, added: Sequence[str]) -> Any:
    """Add words at the end of the list, or of a string that has none yet."""
    if plan.text_variable is not None and plan.variables is not None:
        entries = value_at(data, plan.variables)
        entry = {"name": plan.text_variable, "value": " ".join(map(quote, added))}
        return with_value_at(data, plan.variables, [*(entries or ()), entry])
    if plan.text is not None:
        return with_value_at(data, plan.text, " ".join(map(quote, added)))
    if plan.words is None:
        return None
    held = value_at(data, plan.words)
    return with_value_at(data, plan.words, [*(held if isinstance(held, list) else ()), *added])


def written_into(original: Manifest, data: Any) -> str:
    """Give the text of the original with other data in its place."""
    places = original.places
    if not isinstance(places, YamlPlaces):
        return json.dumps(data)
    return edited_yaml(places, original.data, data)


def _names(entry: object, name: str) -> bool:
    return isinstance(entry, Mapping) and entry.get("name") == name


def _like(old: Any, text: str) -> Any:
    """Give a value of the type that was there, if the text is one."""
    if isinstance(old, int | float) and not isinstance(old, bool):
        try:
            number = json.loads(text)
        except ValueError:
            return text
        if isinstance(number, int | float):
            return number
    return text
