"""Findings of the parser: made of its declared rules, shortened and bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from app.rules.declaration import Declaration
from app.serve_config.declarations import DECLARATIONS
from app.verdict.finding import Finding

MAX_FINDINGS: Final = 50
BY_ID: Final[Mapping[str, Declaration]] = {rule.id: rule for rule in DECLARATIONS}


def bounded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the first findings of each rule; the last one kept says how many there are more."""
    kept: list[Finding] = []
    counts: Counter[str] = Counter()
    last: dict[str, int] = {}
    for found in findings:
        counts[found.rule] += 1
        if counts[found.rule] <= MAX_FINDINGS:
            last[found.rule] = len(kept)
            kept.append(found)
    for rule, count in counts.items():
        if count > MAX_FINDINGS:
            found = kept[last[rule]]
            more = f"{found.message} (and {count - MAX_FINDINGS} more of this kind)"
            kept[last[rule]] = replace(found, message=more)
    return tuple(kept)


def shorten(text: str, width: int = 80) -> str:
    """Cut what a user wrote to a length that fits a message."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def finding(rule: str, message: str, **members: Any) -> Finding:
    """Make a finding of a declared rule; its severity is the declared one."""
    return Finding(rule=rule, severity=BY_ID[rule].severity, message=message, **members)
