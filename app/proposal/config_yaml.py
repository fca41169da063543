"""A vLLM `--config` file, read as vLLM reads it, with the place of every key and value.

vLLM uses PyYAML's `safe_load` (YAML 1.1: `on` is true, `1e3` a string, the last of two equal
keys wins), `utils/argparse_utils.py::FlexibleArgumentParser.load_config_file`; so does this.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.errors import MalformedDocument, PayloadTooLarge, Problem
from app.proposal.positions import LineIndex
from app.proposal.proposal import Form, Proposal, YamlFile
from app.verdict.location import Location

MAX_TEXT: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_NODES: Final = 100_000
# Sexagesimal integers (`1:30:00`) take quadratic time. In every base a text of the first length has
# more digits than Python writes, unless it pads them; one of the second length never has.
_MAX_INTEGER_TEXT: Final = 16_384
_CERTAINLY_SHORT: Final = 1_024

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One top-level key with its value, as PyYAML constructs them.

    `start` and `end` are the offsets of key and value together, `value_start` and `value_end`
    those of the value. `overridden` are the places of the same key before; the last one wins.
    """

    key: Any
    value: Any
    node: Node
    key_location: Location
    location: Location
    start: int
    end: int
    value_start: int
    value_end: int
    overridden: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """The top level of a `--config` file.

    `kind` is "mapping", or "empty", "list", "scalar" for what vLLM cannot use; `entries` are in
    the order of the file. `repeated` are places of nested keys given twice.
    """

    kind: str
    entries: tuple[ConfigEntry, ...]
    location: Location
    repeated: tuple[Location, ...]
    index: LineIndex

    def locate(self, entry: ConfigEntry, path: tuple[str | int, ...]) -> Location:
        """Give the place of a value nested in an entry; of the nearest parent if it is merged."""
        node = entry.node
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            node = found
        return node_location(self.index, node)

    def scalar_span(self, entry: ConfigEntry, path: Sequence[str]) -> tuple[int, int] | None:
        """Give the offsets of a nested scalar as it is written; None if there is none such."""
        node: Node | None = entry.node
        for step in path:
            node = None if node is None else _child(node, step)
        if not isinstance(node, ScalarNode):
            return None
        start, end = node.start_mark.index, node.end_mark.index
        # An alias stands for text elsewhere, which must not be changed for its sake.
        return (start, end) if entry.value_start <= start and end <= entry.value_end else None


def parse_config_yaml(text: str, *, source: str = "config_yaml") -> Proposal:
    """Make a proposal of a `--config` file alone, as `vllm serve --config FILE` would start it.

    Raises:
        MalformedDocument: it is not YAML; the error gives line and column.
        PayloadTooLarge: it is larger than any configuration.
    """
    read_config(text, source)
    return Proposal(form=Form.CONFIG_YAML, yaml=YamlFile(source, text), source=text)


def read_config(text: str, source: str) -> ConfigDocument:
    """Read a `--config` file; time and memory are bounded, whatever aliases it has.

    Raises:
        MalformedDocument: not YAML, or nested or repeated by aliases beyond reason.
        PayloadTooLarge: it is larger than any configuration.
    """
    index = LineIndex(text, source)
    with _reading(text, source) as loader:
        root = loader.get_single_node()
        _check_size(root, index)
        _check_integers(loader, root, index)
        repeated = _repeated_keys(root, index)
        kind, entries = _entries(loader, root, index)
    location = node_location(index, root) if root is not None else index.location(0, 0)
    return ConfigDocument(kind, entries, location, repeated, index)


def read_nodes(text: str, source: str, *, merge: bool = True) -> list[Node]:
    """Read the documents of any YAML text as nodes with their places, within bounds.

    With `merge`, keys of `<<` stand in the mappings that name them. Values are not made.

    Raises:
        MalformedDocument: not YAML, or nested or repeated by aliases beyond reason.
        PayloadTooLarge: it is larger than any configuration.
    """
    index = LineIndex(text, source)
    roots: list[Node] = []
    with _reading(text, source) as loader:
        while loader.check_node():
            root = loader.get_node()
            _check_size(root, index)
            for node in _nodes(root) if merge else ():
                if isinstance(node, MappingNode):
                    loader.flatten_mapping(node)
            _check_size(root, index)
            roots.append(root)
    return roots


@contextmanager
def _reading(text: str, source: str) -> Iterator[Any]:
    """Give a loader of the text; what PyYAML raises becomes an error with its place."""
    if len(text) > MAX_TEXT:
        raise PayloadTooLarge(f"a YAML file of more than {MAX_TEXT} characters is not read")
    try:
        _check_events(text, source)
        loader = _Loader(text)
        try:
            yield loader
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        detail = error.problem or error.context or "not YAML"
        raise _broken(source, detail, mark) from None
    except RecursionError:
        raise _broken(source, "aliases nest too deeply") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise _broken(source, " ".join(str(error).split())) from None


def _check_events(text: str, source: str) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _broken(source, f"nested more than {MAX_DEPTH} deep", event.start_mark)
        if count > MAX_NODES:
            raise _broken(source, f"more than {MAX_NODES} values", event.start_mark)


def _check_size(root: Node | None, index: LineIndex) -> None:
    """Refuse what aliases blow up, counting each alias as the copy it becomes."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Node) -> int:
        key = id(node)
        if key in open_nodes:
            raise _broken(index.source, "this alias contains itself", node.start_mark)
        if key not in sizes:
            open_nodes.add(key)
            sizes[key] = 1 + sum(size(child) for child in _children(node))
            open_nodes.discard(key)
        if sizes[key] > MAX_NODES:
            raise _broken(
                index.source, f"aliases repeat this beyond {MAX_NODES} values", node.start_mark
            )
        return sizes[key]

    if root is not None:
        size(root)


def _check_integers(loader: Any, root: Node | None, index: LineIndex) -> None:
    """Refuse integers that Python cannot write, as vLLM has to, before they take long to read."""
    for node in _nodes(root):
        if not isinstance(node, ScalarNode) or node.tag != "tag:yaml.org,2002:int":
            continue
        too_long = len(node.value) > _MAX_INTEGER_TEXT
        try:
            if not too_long and len(node.value) > _CERTAINLY_SHORT:
                str(loader.construct_object(node))
        except ValueError:
            too_long = True
        if too_long:
            detail = f"an integer of more than {sys.int_info.default_max_str_digits} digits"
            raise _broken(index.source, detail, node.start_mark)


def _nodes(root: Node | None) -> Iterator[Node]:
    """Give every node once, however often aliases repeat it."""
    stack = [] if root is None else [root]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            stack.extend(_children(node))
            yield node


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, SequenceNode) else []


def _repeated_keys(root: Node | None, index: LineIndex) -> tuple[Location, ...]:
    """Find keys given twice in one nested mapping; those of the top level are in the entries."""
    found: list[Location] = []
    for node in _nodes(root):
        if isinstance(node, MappingNode) and node is not root:
            keys: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, ScalarNode):
                    if (key.tag, key.value) in keys:
                        found.append(node_location(index, key))
                    keys.add((key.tag, key.value))
    return tuple(found)


def _entries(
    loader: Any, root: Node | None, index: LineIndex
) -> tuple[str, tuple[ConfigEntry, ...]]:
    if root is None or root.tag == "tag:yaml.org,2002:null":
        return "empty", ()
    if not isinstance(root, MappingNode) or root.tag != "tag:yaml.org,2002:map":
        _construct(loader, root, index)
        return ("list" if isinstance(root, SequenceNode) else "scalar"), ()
    _construct(loader, root, index)  # as safe_load does, so that its errors are vLLM's
    entries: dict[Any, ConfigEntry] = {}
    for key_node, value_node in root.value:  # `<<` is merged in by now
        key = _construct(loader, key_node, index)
        if not isinstance(key, Hashable):
            raise _broken(index.source, "found unhashable key", key_node.start_mark)
        before = entries.get(key)
        overridden = () if before is None else (*before.overridden, before.key_location)
        location = node_location(index, value_node)
        entries[key] = ConfigEntry(
            key=key,
            value=_construct(loader, value_node, index),
            node=value_node,
            key_location=node_location(index, key_node),
            location=location,
            start=key_node.start_mark.index,
            end=value_node.end_mark.index,
            value_start=value_node.start_mark.index,
            value_end=value_node.end_mark.index,
            overridden=overridden,
        )
    return "mapping", tuple(entries.values())


def _construct(loader: Any, node: Node, index: LineIndex) -> Any:
    try:
        value = loader.construct_object(node, deep=True)
    except ConstructorError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _broken(index.source, f"{error}", node.start_mark) from None
    return value


def _child(node: Node, step: str | int) -> Node | None:
    if isinstance(node, MappingNode):
        matches = [value for key, value in node.value if key.value == str(step)]
        return matches[-1] if matches else None
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        child: Node = node.value[step]
        return child
    return None


def node_location(index: LineIndex, node: Node) -> Location:
    """Give the place of a node, without the blanks and comments after a block."""
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style:
        end = len(index.text[:end].rstrip())
    return index.location(start, max(start, end))


def _broken(source: str, detail: str, mark: Any = None) -> MalformedDocument:
    problem = Problem(
        "malformed-yaml",
        detail,
        line=None if mark is None else mark.line + 1,
        column=None if mark is None else mark.column + 1,
    )
    return MalformedDocument(f"{source} is not valid YAML", (problem,))
