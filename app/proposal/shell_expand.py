"""Shell variables, and the words that expanding them makes. Source: POSIX.1-2024, XCU 2.6."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.errors import PayloadTooLarge
from app.proposal.positions import LineIndex
from app.proposal.proposal import Variable
from app.proposal.shell_arithmetic import MAX_LENGTH, assigned_in, evaluated, named_in
from app.proposal.shell_words import Expansion, Literal, RawWord
from app.verdict.location import Location

MAX_EXPANDED: Final = 1 << 18  # Linux takes no single word of more than half of it


@dataclass(frozen=True, slots=True)
class Field:
    """A word after expansion.

    `offsets` say where each character is written, an expanded variable's all where it stands,
    and last where the word's text ends.
    """

    text: str
    unresolved: tuple[str, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """What a variable holds; `elements` if it is an array, `text` then the first of them."""

    text: str
    unresolved: tuple[str, ...]
    location: Location
    exported: bool
    elements: tuple[Field, ...] | None = None

    def as_variable(self, name: str) -> Variable:
        """Give it as a variable of the server's environment."""
        return Variable(name, self.text, replace(self.location, variable=name), self.unresolved)


@dataclass(slots=True)
class _Pieces:
    texts: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def as_field(self, end: int) -> Field:
        names = tuple(dict.fromkeys(self.unresolved)) if self.unresolved else ()
        return Field("".join(self.texts), names, (*self.offsets, end))


class Variables:
    """The variables of a script, as far as its text has been read."""

    def __init__(self, index: LineIndex, open_names: frozenset[str] = frozenset()) -> None:
        """Begin without any; places are those of `index`. `open_names` are never known."""
        self._index = index
        self._open = open_names
        self.values: dict[str, Value] = {}
        self.used: set[str] = set()
        self.defaulted: dict[str, Location] = {}

    def assign(self, raw: RawWord, *, exported: bool) -> None:
        """Carry out one assignment."""
        name, value = self.value(raw)
        before = self.values.get(name)
        exported = exported or (before is not None and before.exported)
        if raw.appends and before is not None:
            value = _joined(before, value)
        self.values[name] = replace(value, exported=exported)

    def value(self, raw: RawWord) -> tuple[str, Value]:
        """Give the name and the value of an assignment."""
        name = raw.assignment or ""
        location = replace(self._index.location(raw.start, raw.end), variable=name)
        if raw.values is not None:
            elements = tuple(found for word in raw.values for found in self.expand(word))
            first = elements[0] if elements else Field("", (), (raw.end,))
            return name, Value(first.text, first.unresolved, location, True, elements)
        found = next(iter(self.expand(raw, split=False)), Field(f"{name}=", (), ()))
        cut = len(name) + 1 + raw.appends
        return name, Value(found.text[cut:], found.unresolved, location, exported=True)

    def environment(self) -> dict[str, Variable]:
        """Give the variables as the environment of a command."""
        return {name: value.as_variable(name) for name, value in self.values.items()}

    def expand(self, raw: RawWord, *, split: bool = True) -> list[Field]:
        """Give the words that a raw word becomes, each with the variables left open in it."""
        fields: list[_Pieces] = []
        fresh = True  # the next text begins a new field
        size = 0
        for part in raw.parts:
            if isinstance(part, Literal):
                if fresh or not fields:
                    fields.append(_Pieces())
                fresh = False
                fields[-1].texts.append(part.text)
                fields[-1].offsets.extend(part.offsets)
                size += len(part.text)
                continue
            breaks = split and not part.quoted
            for text, unresolved, begins in self._expanded(part, breaks):
                if begins or fresh or not fields:
                    fields.append(_Pieces())
                fresh = False
                fields[-1].texts.append(text)
                fields[-1].unresolved.extend(unresolved)
                fields[-1].offsets.extend([part.at] * len(text))
                size += len(text)
                if size > MAX_EXPANDED:
                    raise PayloadTooLarge("the variables expand to more than a command line holds")
            if breaks and self._ends_field(part):
                fresh = True
        return [pieces.as_field(self._end(raw, pieces)) for pieces in fields]

    def _end(self, raw: RawWord, pieces: _Pieces) -> int:
        last = raw.parts[-1]
        if isinstance(last, Literal) and last.offsets and pieces.offsets:
            return min(raw.end, max(last.offsets[-1], pieces.offsets[-1]) + 1)
        return raw.end

    def _expanded(
        self, part: Expansion, breaks: bool
    ) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        """Give the texts of an expansion, each with whether it begins a word of its own."""
        value = self._held(part.name)
        if part.operator == "[@]" and value is not None and value.elements is not None:
            self.used.add(part.name or "")
            for number, element in enumerate(value.elements):
                yield element.text, element.unresolved, number > 0
            return
        text, unresolved = self.value_of(part)
        if not breaks or unresolved:
            yield text, unresolved, False
            return
        for number, piece in enumerate(text.split()):
            yield piece, (), number > 0 or text[:1].isspace()

    def _ends_field(self, part: Expansion) -> bool:
        text, unresolved = self.value_of(part)
        return not unresolved and text[-1:].isspace()

    def open(self, names: Iterable[str], causes: Sequence[str], place: Location) -> None:
        """Take variables for unknown from here on, as what `causes` hold may change them."""
        for name in names:
            before = self.values.get(name)
            location = before.location if before else replace(place, variable=name)
            hangs_on = tuple(dict.fromkeys((name, *causes)))
            self.values[name] = Value(f"${name}", hangs_on, location, exported=True)

    def value_of(self, part: Expansion) -> tuple[str, tuple[str, ...]]:
        """Give the text of an expansion, and the variables left open in it."""
        if part.arithmetic is not None:
            return self._arithmetic(part, part.arithmetic)
        if part.name is None:
            return part.raw, (part.raw.removeprefix("$"),)
        self.used.add(part.name)
        if part.name in self._open:
            return part.raw, (part.name,)
        value = self.values.get(part.name)
        operator = part.operator or ""
        empty = value is not None and not value.text and operator.startswith(":")
        if operator in {"=", ":="} and (value is None or empty):
            place = self._index.location(part.at, part.at + len(part.raw))
            exported = value is not None and value.exported
            place = replace(place, variable=part.name)
            self.values[part.name] = Value(part.word, (), place, exported=exported)
        if value is None:
            if operator in {"-", ":-", "=", ":="}:
                place = self._index.location(part.at, part.at + len(part.raw))
                self.defaulted.setdefault(part.name, place)
                return part.word, ()
            return part.raw, (part.name,)
        if operator.endswith("+") and value.unresolved:  # it may be empty, or not be set
            return part.raw, value.unresolved
        if operator.endswith("+"):
            return ("" if empty else part.word), ()
        if operator.endswith(("-", "=")) and empty:
            return part.word, ()
        return value.text, value.unresolved

    def _arithmetic(
        self, part: Expansion, inner: tuple[Literal | Expansion, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """Give the value of `$((…))`; as it is written if something in it is not known."""
        written = part.raw[3:-2]
        self.used |= named_in(written)
        defaulted = dict(self.defaulted)
        result = self._evaluated(inner)
        for name in assigned_in(written):
            place = self._index.location(part.at, part.at + len(part.raw))
            self.values[name] = Value(f"${name}", (name,), place, exported=False)
        if isinstance(result, int):
            return str(result), ()
        self.defaulted = defaulted
        # What has quotes of its own is not quoted again, only kept whole.
        whole = not result or any(char in written for char in '"`\\')
        return part.raw, (part.raw.removeprefix("$"),) if whole else result

    def _evaluated(self, inner: tuple[Literal | Expansion, ...]) -> int | tuple[str, ...]:
        """Give the value, or the variables that it hangs on; none if it is not read."""
        texts: list[str] = []
        open_names: list[str] = []
        size = 0
        for part in inner:
            text = part.text if isinstance(part, Literal) else ""
            if isinstance(part, Expansion):
                text, unresolved = self.value_of(part)
                open_names.extend(unresolved)
                if part.operator == "[@]":
                    return ()
            size += len(text)
            if size > MAX_LENGTH:
                return ()
            texts.append(text)
        return tuple(open_names) or evaluated("".join(texts), self._known)

    def _known(self, name: str) -> str | None:
        value = self._held(name)
        return None if value is None or value.unresolved else value.text

    def _held(self, name: str | None) -> Value | None:
        return None if name is None or name in self._open else self.values.get(name)


def _joined(before: Value, value: Value) -> Value:
    """Give what `+=` makes of a variable."""
    if value.elements is not None:
        first = before.elements
        if first is None:
            first = (Field(before.text, before.unresolved, (0,) * (len(before.text) + 1)),)
        elements = (*first, *value.elements)
        return replace(value, elements=elements, text=elements[0].text if elements else "")
    return replace(
        value,
        text=before.text + value.text,
        unresolved=tuple(dict.fromkeys((*before.unresolved, *value.unresolved))),
    )
