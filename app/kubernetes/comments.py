"""What the comments of a manifest say: notes for people, which no API server ever gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.kubernetes.manifest import Manifest, Path, YamlPlaces
from app.kubernetes.placed import MappedPlaces
from app.proposal.workload import GpuShare
from app.proposal.yaml_comments import Comment, lines_before, nodes_in

_GPU: Final = r"(?:GPU|accelerator|graphics card)s?"
_TOGETHER: Final = r"(?:shared|time-?sliced|co-?located)"
# "Shared memory" of GPUs is something else, and nodes are shared without their GPUs.
_OTHER: Final = (
    r"(?![ -](?:memory|nodes?|node-?pools?|pools?|clusters?|quotas?|machines?|hosts?)\b)"
)
_SHARED: Final = re.compile(
    rf"\b{_GPU} (?:is |are |(?:will|may|can) be )?{_TOGETHER}\b{_OTHER}"
    rf"|\b(?:shares?|sharing) (?:(?:the|a|an|one|its|this|that|same|single) )*{_GPU}\b{_OTHER}"
    rf"|\bon (?:the|that|a) (?:same|{_TOGETHER}) {_GPU}\b{_OTHER}",
    re.IGNORECASE,
)
# Behind a line about GPUs the comment need not name them.
_WITH: Final = re.compile(rf"\b{_TOGETHER} (?:with|by|between|among)\b", re.IGNORECASE)
_ABOUT_GPUS: Final = re.compile(r"\bgpus?\b", re.IGNORECASE)
_DENIED: Final = re.compile(
    r"\b(?:not|no|never|without|unless|avoid|instead|if|exclusive\w*|dedicated|\w+n't)\b",
    re.IGNORECASE,
)
_ASLEEP: Final = re.compile(r"\b(?:asleep|sleep\w*)\b", re.IGNORECASE)
# With these a server may see its own part of the memory alone.
_PARTS: Final = re.compile(r"\b(?:MPS|MIG|HAMi|vGPUs?)\b", re.IGNORECASE)
_SHOWN: Final = 100
# What a part of an object has that runs something.
_RUNS: Final = frozenset({"containers", "mainContainer", "args", "command", "image"})


def gpu_comments(manifest: Manifest, container: Path) -> Iterator[GpuShare]:
    """Give what comments of an object say of others on the GPU of a container.

    A comment within another part that runs something is about that one.
    """
    if isinstance(manifest.places, MappedPlaces):
        container = manifest.places.source(container)
        manifest = manifest.places.original
    places = manifest.places
    if not isinstance(places, YamlPlaces):
        return
    said = [comment for comment in places.comments if _is_told(comment, places.index.text)]
    others = list(_others(places, container)) if said else []
    for comment in said:
        if any(_holds(places, node, comment) for node in others):
            continue
        text = comment.text
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        yield GpuShare(
            sign=f'the comment "{shown}"',
            location=places.index.location(comment.start, comment.end),
            asleep=_ASLEEP.search(text) is not None,
            limited=None if _PARTS.search(text) else False,
        )


def _is_told(comment: Comment, text: str) -> bool:
    if _DENIED.search(comment.text):
        return False
    if _SHARED.search(comment.text):
        return True
    line = text[text.rfind("\n", 0, comment.start) + 1 : comment.start]
    return bool(_ABOUT_GPUS.search(line) and _WITH.search(comment.text))


def _others(places: YamlPlaces, container: Path) -> Iterator[Node]:
    """Give the parts beside the container, or beside what holds it, that run something."""
    for length in range(len(container)):
        own, around = places.node(container[: length + 1]), places.node(container[:length])
        for node in _values(around):
            if node is not own and _runs(node):
                yield node


def _values(node: Node | None) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        yield from (value for _, value in node.value)
    elif isinstance(node, SequenceNode):
        yield from node.value


def _runs(root: Node) -> bool:
    return any(
        isinstance(key, ScalarNode) and key.value in _RUNS
        for node in nodes_in(root)
        if isinstance(node, MappingNode)
        for key, _ in node.value
    )


def _holds(places: YamlPlaces, node: Node, comment: Comment) -> bool:
    """Whether a comment is within a part: what follows one further left is not.

    So is what stands on the lines before a part that begins a line.
    """
    start = node.start_mark.index
    if not places.index.text[start - node.start_mark.column : start].strip():
        start = lines_before(places.index.text, start)
    inside = start <= comment.start < node.end_mark.index
    return inside and comment.column > node.start_mark.column
