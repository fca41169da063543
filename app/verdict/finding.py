"""What a parser, a rule or a check says about one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.verdict.fix import Fix
from app.verdict.location import Location


class Severity(StrEnum):
    """How bad a finding is.

    An error is something vLLM refuses (or a response that is refuted); a warning is something
    it changes silently, ignores, or that fails later; info is worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement about one place, tied to a declared rule.

    `engine_message` is vLLM's own error text where it has one, word for word, so that people
    who search for it find us. `undecided` marks an open question which the proposal itself
    raises and which would decide the verdict. `evidence` holds the values compared.
    """

    rule: str
    severity: Severity
    message: str
    location: Location | None = None
    related: tuple[Location, ...] = ()
    fix: Fix | None = None
    engine_message: str | None = None
    undecided: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Render as plain data, leaving out what is not there."""
        body: dict[str, Any] = {
            "rule": self.rule,
            "severity": self.severity.value,
            "message": self.message,
        }
        if self.location is not None:
            body["location"] = self.location.as_json()
        if self.related:
            body["related"] = [location.as_json() for location in self.related]
        if self.undecided:
            body["undecided"] = True
        if self.engine_message is not None:
            body["engine_message"] = self.engine_message
        if self.fix is not None:
            body["fix"] = self.fix.as_json()
        if self.evidence:
            body["evidence"] = dict(self.evidence)
        return body
