"""The smallest JSONPatch (RFC 6902) from one object to another, for an admission response.

What is replaced or removed is tested first: another webhook may have changed it since. Keys and
items are added where they belong, so that the patch says what it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from app.kubernetes.manifest import Path, pointer_of

Operation: TypeAlias = dict[str, Any]


def patch_between(old: Any, new: Any, path: Path = ()) -> Iterator[Operation]:
    """Give the operations, in the order in which they apply."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old:
            if key not in new:
                yield from _removed(old[key], (*path, key))
        for key, value in new.items():
            if key not in old:
                yield {"op": "add", "path": pointer_of((*path, key)), "value": value}
            else:
                yield from patch_between(old[key], value, (*path, key))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _items(old, new, path)
    else:
        yield {"op": "test", "path": pointer_of(path), "value": old}
        yield {"op": "replace", "path": pointer_of(path), "value": new}


def _items(old: list[Any], new: list[Any], path: Path) -> Iterator[Operation]:
    if all(isinstance(item, Mapping) for item in (*old, *new)) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from patch_between(before, after, (*path, i))
        return
    keys = [_key(item) for item in old], [_key(item) for item in new]
    matcher = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False)
    # From the end: what is before keeps its index.
    for tag, start, end, new_start, new_end in reversed(matcher.get_opcodes()):
        if tag == "equal":
            continue
        common = min(end - start, new_end - new_start)
        for i in range(end - 1, start + common - 1, -1):
            yield from _removed(old[i], (*path, i))
        for i in range(new_end - 1, new_start + common - 1, -1):
            at = start + common
            yield {"op": "add", "path": pointer_of((*path, at)), "value": new[i]}
        for i in range(common):
            yield from patch_between(old[start + i], new[new_start + i], (*path, start + i))


def _removed(value: Any, path: Path) -> Iterator[Operation]:
    yield {"op": "test", "path": pointer_of(path), "value": value}
    yield {"op": "remove", "path": pointer_of(path)}


def _key(item: Any) -> str:
    return repr(item)
