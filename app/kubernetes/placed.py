"""Objects made up from custom resources, whose values still know where they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.kubernetes.manifest import Manifest, Path
from app.proposal.positions import LineIndex
from app.verdict.location import Location


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
    """Places of an object made from another one: each path, or one around it, is mapped."""

    original: Manifest
    mapped: Mapping[Path, Path]
    made: Mapping[str, Any]

    def location(self, path: Path) -> Location:
        """Give the place of what the value was made from."""
        return self.original.places.location(self._path(path))

    def text(self, path: Path) -> LineIndex:
        """Give the text where it was written, if it is the same there."""
        made, real = self._made(path), self._path(path)
        if self.original.at(real) == made:
            return self.original.places.text(real)
        return PlacedText(made, self.location(path))

    def _made(self, path: Path) -> str:
        value = Manifest(self.made, self).at(path)
        return value if isinstance(value, str) else ""

    def _path(self, path: Path) -> Path:
        for length in range(len(path), -1, -1):
            real = self.mapped.get(path[:length])
            if real is not None:
                return (*real, *path[length:])
        return path


class Maker:
    """Makes a pod for a server that a custom resource describes in its own words."""

    def __init__(self, original: Manifest) -> None:
        self._original = original
        self._container: dict[str, Any] = {}
        self._pod: dict[str, Any] = {}
        self._mapped: dict[Path, Path] = {}
        self._at: Path = ("spec", "containers", 0)

    def set(self, key: str, value: Any, source: Path) -> None:
        """Set a member of the container, made from what stands at `source`."""
        if value is not None:
            self._container[key] = value
            self._mapped[*self._at, key] = source

    def set_pod(self, key: str, value: Any, source: Path) -> None:
        """Set a member of the pod."""
        if value is not None:
            self._pod[key] = value
            self._mapped["spec", key] = source

    def word(self, text: str, source: Path) -> None:
        """Add an argument."""
        words = self._container.setdefault("args", [])
        self._mapped[*self._at, "args", len(words)] = source
        words.append(text)

    def made(self, name: str, source: Path) -> Manifest:
        """Give the object; `source` is where the server is described."""
        self._mapped[self._at] = source
        data = {
            "apiVersion": "v1",
            "kind": self._original.kind or "Values",
            "metadata": dict(self._original.metadata),
            "spec": {**self._pod, "containers": [{"name": name, **self._container}]},
        }
        return Manifest(data, MappedPlaces(self._original, self._mapped, data))
