"""What a proposal asks of its judge: exceptions from rules, and how much is forgiven.

A comment `# vllm-admission: ignore[rule-id] reason` in shell text or YAML, a member `ignore` of the
envelope, or an annotation of a Kubernetes object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.proposal.positions import LineIndex
from app.verdict.location import Location

_MARK: Final = "vllm-admission:"
_COMMENT: Final = re.compile(r"#[ \t]*vllm-admission:[ \t]*ignore\[([^\]\n]*)\][ \t]*([^\n]*)")


class Profile(StrEnum):
    """How much a verdict forgives: to the strict one a warning is one too many."""

    DEFAULT = "default"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class Suppression:
    """One rule not to count against the proposal; an empty reason makes it void."""

    rule: str
    reason: str
    location: Location | None = None


def suppressions_in(sources: Mapping[str, str]) -> Iterator[Suppression]:
    """Give those written as comments in texts, by the texts' names."""
    for source, text in sources.items():
        if _MARK not in text:
            continue
        index = LineIndex(text, source)
        for match in _COMMENT.finditer(text):
            place = index.location(match.start(), match.end())
            for rule in match.group(1).split(","):
                yield Suppression(rule.strip(), match.group(2).strip(), place)
