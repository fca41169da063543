"""Kubernetes objects as data, with where each value is written.

The same reading serves a text (`kubectl kustomize`, a file) and an object that the API server
sent: a text has lines and columns, an object has JSON pointers alone.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.proposal.config_yaml import node_location, read_nodes
from app.proposal.positions import LineIndex
from app.proposal.yaml_comments import Comment, comments_of, parts_of
from app.proposal.yaml_text import scalar_text
from app.verdict.location import Location

Path: TypeAlias = tuple[str | int, ...]
_SHOWN: Final = 120


class Places(Protocol):
    """Where the values of an object are written."""

    def location(self, path: Path) -> Location:
        """Give the place of a value, or of what would hold it."""

    def text(self, path: Path) -> LineIndex:
        """Give a string value as a text of its own, for what is written in it."""


@dataclass(frozen=True)
class Manifest:
    """One object: `data` as JSON would hold it, and its places."""

    data: Mapping[str, Any]
    places: Places

    @property
    def kind(self) -> str:
        """The kind, such as `Deployment`; empty where it is not given."""
        return _string(self.data.get("kind"))

    @property
    def group(self) -> str:
        """The API group without its version, such as `apps`; empty for the core."""
        group, slash, _ = _string(self.data.get("apiVersion")).rpartition("/")
        return group if slash else ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """`metadata`, empty where it is none."""
        metadata = self.data.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    @property
    def name(self) -> str:
        """`metadata.name`, or what names will begin with."""
        return _string(self.metadata.get("name")) or _string(self.metadata.get("generateName"))

    @property
    def namespace(self) -> str:
        """`metadata.namespace`; empty where it is not given."""
        return _string(self.metadata.get("namespace"))

    @property
    def title(self) -> str:
        """How to name it to a reader: `Deployment/qwen`."""
        return f"{self.kind or 'object'}/{self.name}" if self.name else self.kind or "object"

    def at(self, path: Path) -> Any:
        """Give the value at a path; None where there is none."""
        value: Any = self.data
        for step in path:
            if isinstance(step, int):
                fits = isinstance(value, list) and step < len(value)
                value = value[step] if fits else None
            else:
                value = value.get(step) if isinstance(value, Mapping) else None
        return value


def pointer_of(path: Path) -> str:
    """Write a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


OBJECT: Final = "object"


class PointedText(LineIndex):
    """A string of a JSON object, at `path`; its places say where in the object it stands."""

    def __init__(self, text: str, path: Path) -> None:
        super().__init__(text, OBJECT)
        self.path = path

    def location(self, start: int, end: int, *, argv_index: int | None = None) -> Location:
        """Describe the text between two offsets, with the pointer of the string."""
        place = super().location(start, end, argv_index=argv_index)
        return replace(place, pointer=pointer_of(self.path))


@dataclass(frozen=True)
class JsonPlaces:
    """Places of an object that came as JSON."""

    data: Mapping[str, Any]

    def location(self, path: Path) -> Location:
        """Give the pointer."""
        return Location(source=OBJECT, pointer=pointer_of(path))

    def text(self, path: Path) -> LineIndex:
        """Give the string, its lines counted within it."""
        value = Manifest(self.data, self).at(path)
        return PointedText(value if isinstance(value, str) else "", path)


@dataclass(frozen=True)
class YamlPlaces:
    """Places of a document in a YAML text."""

    index: LineIndex
    root: Node

    def node(self, path: Path) -> Node | None:
        """Give the node at a path."""
        node: Node | None = self.root
        for step in path:
            node = _child(node, step)
        return node

    def location(self, path: Path) -> Location:
        """Give line, column and pointer; of what would hold the value if it is not there."""
        for length in range(len(path), -1, -1):
            node = self.node(path[:length])
            if node is not None:
                return replace(node_location(self.index, node), pointer=pointer_of(path))
        raise AssertionError("the root is always there")

    def text(self, path: Path) -> LineIndex:
        """Give the scalar as a text within the document."""
        node = self.node(path)
        if isinstance(node, ScalarNode):
            return scalar_text(self.index, node)
        return LineIndex("", self.index.source)

    @cached_property
    def source(self) -> str:
        """The name of the text."""
        return self.index.source

    def is_shared(self, node: Node | None) -> bool:
        """Whether an alias makes a node stand in several places: an edit would change all."""
        return id(node) in self._shared

    @cached_property
    def comments(self) -> tuple[Comment, ...]:
        """The comments of the document, in their order."""
        return tuple(comments_of(self.index, self.root))

    @cached_property
    def _shared(self) -> frozenset[int]:
        counts: Counter[int] = Counter()
        twice: list[Node] = []
        stack = [self.root]
        while stack:
            node = stack.pop()
            counts[id(node)] += 1
            if counts[id(node)] > 1:
                twice.append(node)
            else:
                stack.extend(parts_of(node))
        shared: set[int] = set()
        while twice:
            node = twice.pop()
            if id(node) not in shared:
                shared.add(id(node))
                twice.extend(parts_of(node))
        return frozenset(shared)


def _child(node: Node | None, step: str | int) -> Node | None:
    if isinstance(node, SequenceNode) and isinstance(step, int):
        found: Node | None = node.value[step] if step < len(node.value) else None
        return found
    if isinstance(node, MappingNode):
        named = [v for k, v in node.value if isinstance(k, ScalarNode) and k.value == step]
        return named[-1] if named else None
    return None


def read_manifests(text: str, source: str) -> tuple[Manifest, ...]:
    """Read the documents of a YAML text; the items of a `List` count as documents.

    Raises:
        MalformedDocument: not YAML; the message has line and column.
        PayloadTooLarge: it is larger than any manifest.
    """
    return read_documents(LineIndex(text, source))


def read_documents(index: LineIndex) -> tuple[Manifest, ...]:
    """Read the documents of a YAML text that may stand inside another one.

    Raises: as `read_manifests`.
    """
    found: list[Manifest] = []
    for root in read_nodes(index.text, index.source):
        if isinstance(root, MappingNode):
            found.extend(_with_items(Manifest(_data(root), YamlPlaces(index, root))))
    return tuple(found)


def text_of(manifest: Manifest) -> str:
    """Give the text that an object is part of, or its own as JSON."""
    places = manifest.places
    return places.index.text if isinstance(places, YamlPlaces) else json.dumps(manifest.data)


def manifest_of(data: Mapping[str, Any]) -> Manifest:
    """Take an object as the API server sends it."""
    return Manifest(data, JsonPlaces(data))


def _with_items(manifest: Manifest) -> Iterator[Manifest]:
    items = manifest.data.get("items")
    places = manifest.places
    if not manifest.kind.endswith("List") or not isinstance(items, list):
        yield manifest
        return
    for i, item in enumerate(items):
        if isinstance(item, Mapping) and isinstance(places, YamlPlaces):
            root = places.node(("items", i))
            if root is not None:
                yield Manifest(item, YamlPlaces(places.index, root))


def _data(node: Node) -> Any:
    """Make plain data; numbers, booleans and null as YAML 1.1 reads them, as Kubernetes does."""
    if isinstance(node, MappingNode):
        return {k.value: _data(v) for k, v in node.value if isinstance(k, ScalarNode)}
    if isinstance(node, SequenceNode):
        return [_data(item) for item in node.value]
    construct = _CONSTRUCTOR.yaml_constructors.get(node.tag)
    if construct is None:
        return node.value
    try:
        value = construct(_CONSTRUCTOR, node)
    except _NOT_MADE:  # such as the date 2026-99-99, or a tag that does not fit (`!!int x`)
        return node.value
    # JSON has no dates: Kubernetes takes what is written.
    return node.value if isinstance(value, datetime.date | bytes) else value


# What PyYAML raises on a text that its tag does not fit.
_NOT_MADE: Final = (ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError)
_CONSTRUCTOR: Final = yaml.constructor.SafeConstructor()
