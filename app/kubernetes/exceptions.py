"""Exceptions from rules in an annotation: `vllm-admission/ignore: "rule-id: reason; …"`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.proposal.positions import LineIndex
from app.proposal.suppression import Suppression

ANNOTATION: Final = "vllm-admission/ignore"


def exceptions_of(annotations: Mapping[str, LineIndex]) -> Iterator[Suppression]:
    """Give the exceptions of an object; one without a reason is void, and told so."""
    written = annotations.get(ANNOTATION)
    if written is None:
        return
    place = written.location(0, len(written.text))
    for entry in written.text.split(";"):
        rule, _, reason = entry.partition(":")
        if rule.strip():
            yield Suppression(rule.strip(), reason.strip(), place)
