"""Exceptions from rules in an annotation: `vllm-admission/ignore: "rule-id: reason; …"`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.proposal.suppression import Suppression
from app.verdict.location import Location

ANNOTATION: Final = "vllm-admission/ignore"


def exceptions_of(annotations: Mapping[str, str]) -> Iterator[Suppression]:
    """Give the exceptions of an object; one without a reason is void, and told so."""
    text = annotations.get(ANNOTATION, "")
    place = Location(pointer="/metadata/annotations/vllm-admission~1ignore", text=text[:120])
    for entry in text.split(";"):
        rule, _, reason = entry.partition(":")
        if rule.strip():
            yield Suppression(rule.strip(), reason.strip(), place)
