"""Objects made up from custom resources, whose values still know where they were written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any, Final

from app.errors import AdmissionError
from app.kubernetes.manifest import Manifest, Path
from app.proposal.positions import LineIndex
from app.proposal.proposal import Form
from app.proposal.shell import read_shell
from app.verdict.location import Location

_POD: Final[Path] = ("spec",)
_CONTAINER: Final[Path] = ("spec", "containers", 0)
_ARGUMENTS: Final[Path] = (*_CONTAINER, "args")


class Role(Enum):
    """What a word of a made-up command is in the resource that it was made from."""

    ITEM = auto()
    """An item of a list of words."""
    FLAG = auto()
    """The option that a key stands for; its value is the word after it."""
    VALUE = auto()
    """The value of a key."""
    SWITCH = auto()
    """The option that a key with true or false stands for."""
    TEXT = auto()
    """A word in a string that a shell splits."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a word is written. `options` are a switch's, for true and for false."""

    path: Path
    role: Role
    options: tuple[str, str] = ("", "")


@dataclass(slots=True)
class Plan:
    """How edits of a made-up server are written into its resource.

    Attributes:
        slots: of each word of the arguments; None for what the resource does not say.
        words: the list that further words are added to.
        text: the string that further words are added to, instead.
        text_variable: the variable of the container that holds that string, if it is one that
            may have to be added.
        variables: the list of `env`, or the mapping, that sets variables.
        named: whether `variables` is a mapping.
        partial: whether a controller adds to the pod what the resource does not say.
    """

    slots: list[Slot | None] = field(default_factory=list)
    words: Path | None = None
    text: Path | None = None
    text_variable: str | None = None
    variables: Path | None = None
    named: bool = False
    partial: bool = True


class PlacedText(LineIndex):
    """A text that stands nowhere as it is: all of it is where it comes from."""

    def __init__(self, text: str, place: Location) -> None:
        super().__init__(text, place.source or "")
        self._place = place

    def location(self, start: int, end: int, *, argv_index: int | None = None) -> Location:  # noqa: ARG002 - as in LineIndex
        """Give the place that the text comes from."""
        return self._place


@dataclass(frozen=True)
class MappedPlaces:
    """Places of an object made from another one: each path, or one around it, is mapped.

    `direct` is the container in the original whose command and variables are the made ones, if
    there is one; else `plan` says how edits are written.
    """

    original: Manifest
    mapped: Mapping[Path, Path]
    made: Mapping[str, Any]
    plan: Plan
    direct: Path | None = None

    def location(self, path: Path) -> Location:
        """Give the place of what the value was made from; of a word, in the text that has it."""
        if path[:-1] == _ARGUMENTS and isinstance(path[-1], int):
            place = self._words.get(path[-1])
            if place is not None:
                return place
        return self.original.places.location(self.source(path))

    @cached_property
    def _words(self) -> dict[int, Location]:
        """Give the places of words in strings that a shell splits."""
        numbers: dict[Path, list[int]] = {}
        for i, slot in enumerate(self.plan.slots):
            if slot is not None and slot.role is Role.TEXT:
                numbers.setdefault(slot.path, []).append(i)
        found: dict[int, Location] = {}
        for path, held in numbers.items():
            index = self.original.places.text(path)
            try:
                words = read_shell(
                    index, form=Form.KUBERNETES, environment={}, files={}, depth=0
                ).words
            except AdmissionError:
                continue
            if len(words) == len(held):
                pointer = self.original.places.location(path).pointer
                places = (replace(word.location, pointer=pointer) for word in words)
                found.update(zip(held, places, strict=True))
        return found

    def text(self, path: Path) -> LineIndex:
        """Give the text where it was written, if it is the same there."""
        made, real = self._made(path), self.source(path)
        if self.original.at(real) == made:
            return self.original.places.text(real)
        return PlacedText(made, self.location(path))

    def source(self, path: Path) -> Path:
        """Give the path in the original of what a value, or one around it, was made from."""
        for length in range(len(path), -1, -1):
            real = self.mapped.get(path[:length])
            if real is not None:
                return (*real, *path[length:])
        return path

    def _made(self, path: Path) -> str:
        value = Manifest(self.made, self).at(path)
        return value if isinstance(value, str) else ""


class Maker:
    """Makes a pod for a server that a custom resource describes in its own words."""

    def __init__(self, original: Manifest) -> None:
        self.plan = Plan()
        self._original = original
        self._container: dict[str, Any] = {}
        self._pod: dict[str, Any] = {}
        self._metadata = dict(original.metadata)
        self._mapped: dict[Path, Path] = {}

    def set(self, key: str, value: Any, source: Path) -> None:
        """Set a member of the container, made from what stands at `source`."""
        if value is not None:
            self._container[key] = value
            self._mapped[*_CONTAINER, key] = source

    def set_variables(
        self, own: Sequence[Any], at: Path, added: Sequence[Mapping[str, Any]], source: Path
    ) -> None:
        """Set `env`: what a controller adds comes first and wins, then the container's own."""
        names = [entry["name"] for entry in added]
        kept = [None if isinstance(e, Mapping) and e.get("name") in names else e for e in own]
        if not added and not kept:
            return
        self.set("env", [*added, *kept], at)
        for i in range(len(added)):
            self._mapped[*_CONTAINER, "env", i] = source
        for i in range(len(kept)):
            self._mapped[*_CONTAINER, "env", len(added) + i] = (*at, i)

    def set_pod(self, key: str, value: Any, source: Path) -> None:
        """Set a member of the pod."""
        if value is not None:
            self._pod[key] = value
            self._mapped[*_POD, key] = source

    def name_variables(self, names: Iterable[object], source: Path) -> None:
        """Say where each entry of `env` was written that was made from the mapping at `source`."""
        for i, name in enumerate(names):
            self._mapped[*_CONTAINER, "env", i] = (*source, str(name))

    def annotate(self, name: str, value: str, source: Path) -> None:
        """Add an annotation of the pod."""
        held = self._metadata.get("annotations")
        held = dict(held) if isinstance(held, Mapping) else {}
        self._metadata["annotations"] = {**held, name: value}
        self._mapped["metadata", "annotations", name] = source

    def word(
        self,
        text: str,
        source: Path,
        role: Role | None = None,
        options: tuple[str, str] = ("", ""),
    ) -> None:
        """Add an argument; without a `role` the resource does not say it in so many words."""
        words = self._container.setdefault("args", [])
        self._mapped[*_CONTAINER, "args", len(words)] = source
        self.plan.slots.append(None if role is None else Slot(source, role, options))
        words.append(text)

    def made(self, name: str, source: Path, *, direct: bool = False) -> Manifest:
        """Give the object; `source` is where the server is described.

        Where that is `direct`, the container there has the command and variables as they are.
        """
        self._mapped[_CONTAINER] = source
        data = {
            "apiVersion": "v1",
            "kind": self._original.kind or "Values",
            "metadata": self._metadata,
            "spec": {**self._pod, "containers": [{"name": name, **self._container}]},
        }
        places = MappedPlaces(
            self._original, self._mapped, data, self.plan, source if direct else None
        )
        return Manifest(data, places)
