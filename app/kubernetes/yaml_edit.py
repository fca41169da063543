"""Writing changed data into the YAML that it was read from: only what differs is written anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Final, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.kubernetes.manifest import YamlPlaces
from app.proposal.positions import LineIndex
from app.proposal.yaml_entries import Entries
from app.proposal.yaml_text import scalar_text, written

_BLOCKS: Final = frozenset({"|", ">"})
_QUOTES: Final = frozenset({"'", '"'})
# How deep it is, start, end and what stands there instead.
_Splice: TypeAlias = tuple[int, int, int, str]


def edited_yaml(places: YamlPlaces, old: Any, new: Any) -> str:
    """Give the text that `places` are in, with `new` in the place of `old`.

    `old` is what the document was read as. Comments and layout stay outside what differs; values
    that are added are written on one line.
    """
    text = places.index.text
    splices = sorted(
        _changes(places, places.root, old, new, 0), key=lambda splice: (-splice[1], splice[0])
    )
    for _, start, end, replacement in splices:
        text = text[:start] + replacement + text[end:]
    return text


def _changes(
    places: YamlPlaces, node: Node | None, old: Any, new: Any, depth: int
) -> Iterator[_Splice]:
    if _same(old, new) or node is None or places.is_shared(node):
        return
    if isinstance(node, MappingNode) and isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _members(places, node, old, new, depth)
    elif isinstance(node, SequenceNode) and isinstance(old, list) and isinstance(new, list):
        yield from _items(places, node, old, new, depth)
    elif isinstance(node, ScalarNode) and isinstance(old, str) and isinstance(new, str):
        yield (depth, *_text(places, node, new))
    else:
        start, end = node.start_mark.index, node.end_mark.index
        end = max(start, len(places.index.text[:end].rstrip())) if end > start else end
        blank = " " if places.index.text[start - 1 : start] == ":" else ""
        yield depth, start, end, blank + flow(new, text=places.index.text)


def _members(
    places: YamlPlaces,
    node: MappingNode,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    depth: int,
) -> Iterator[_Splice]:
    entries = Entries(places.index.text, node)
    start, end = node.start_mark.index, node.end_mark.index
    last = {k.value: i for i, (k, _) in enumerate(node.value) if isinstance(k, ScalarNode)}
    for number, (key, value) in enumerate(node.value):
        if not start <= key.start_mark.index <= value.start_mark.index < end:
            continue  # it stands elsewhere, behind an alias or `<<`, and others use it too
        name = str(key.value) if isinstance(key, ScalarNode) else ""
        if name not in old:
            continue
        if name not in new:
            entries.replace(number, [])
        elif number != last[name]:
            continue  # of a key that is written twice the last one counts
        elif _emptied(value, old[name], new[name]):
            # What is left of a block without its entries is no YAML in every layout.
            text = places.index.text
            end = max(key.end_mark.index, len(text[: value.end_mark.index].rstrip()))
            yield depth + 1, key.end_mark.index, end, f": {flow(new[name], text=text)}"
        else:
            yield from _changes(places, value, old[name], new[name], depth + 1)
    text = places.index.text
    own = [pair for pair in node.value if start <= pair[0].start_mark.index < end]
    if own == node.value:
        entries.add(
            [f"{flow(k, text=text)}: {flow(new[k], text=text)}" for k in new if k not in old]
        )
    yield from ((depth, *splice) for splice in entries.splices())


def _emptied(node: Node, old: Any, new: Any) -> bool:
    """Whether none of the entries of a block stays."""
    if getattr(node, "flow_style", True) or isinstance(old, str):
        return False
    if isinstance(old, Mapping):
        return isinstance(new, Mapping) and old.keys().isdisjoint(new)
    return isinstance(new, list) and not new


def _items(
    places: YamlPlaces, node: SequenceNode, old: list[Any], new: list[Any], depth: int
) -> Iterator[_Splice]:
    entries = Entries(places.index.text, node)
    styles = {getattr(item, "style", None) for item in node.value}
    quoted = bool(styles) and styles <= _QUOTES
    matcher = SequenceMatcher(a=list(map(repr, old)), b=list(map(repr, new)), autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        common = min(end - start, new_end - new_start)
        for i in range(common):
            item = node.value[start + i]
            yield from _changes(places, item, old[start + i], new[new_start + i], depth + 1)
        for i in range(start + common, end):
            entries.replace(i, [])
        further = new[new_start + common : new_end]
        added = [flow(item, quoted=quoted, text=places.index.text) for item in further]
        entries.add(added, before=end if end < len(old) else None)
    yield from ((depth, *splice) for splice in entries.splices())


def _text(places: YamlPlaces, node: ScalarNode, new: str) -> tuple[int, int, str]:
    """Write a string in the style of the one before; of a block only what differs."""
    text = places.index.text
    start, end = node.start_mark.index, node.end_mark.index
    if node.style not in _BLOCKS:
        return start, end, written(new, quoted=node.style in _QUOTES)
    whole = scalar_text(LineIndex(text, places.source), node).whole(new)
    shared = min(len(text), len(whole))
    first = next((i for i in range(shared) if text[i] != whole[i]), shared)
    left = shared - first
    last = next((i for i in range(left) if text[-1 - i] != whole[-1 - i]), left)
    return first, len(text) - last, whole[first : len(whole) - last]


def _same(old: Any, new: Any) -> bool:
    """Whether two values are the same to YAML: `1` and `true` are not."""
    return repr(old) == repr(new)


def is_json(text: str) -> bool:
    """Whether a text is JSON, as far as its first character tells: then it is to stay so."""
    return text.lstrip()[:1] in {"{", "["}


def flow(value: Any, *, quoted: bool = False, text: str = "") -> str:
    """Write a value on one line of a text, as JSON if that is JSON."""
    if is_json(text):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return written(value, quoted=quoted)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return yaml.safe_dump(value).removesuffix("\n...\n").strip()
