"""The one declaration of a rule, from which docs, `GET /rules`, SARIF and tests derive."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from app.verdict.finding import Severity


class Gate(StrEnum):
    """Which gate a rule belongs to."""

    CONFIGURATION = "configuration"
    REQUEST = "request"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Example:
    """An input that breaks (or keeps) the rule, on every version in `versions`.

    For configuration rules `text` is shell text (`VAR=1 vllm serve m --flag`), or YAML of
    Kubernetes objects where the rule is about what stands around the command; for request
    rules a JSON body; `note` says what is special about it. `model_config`,
    `draft_model_config` and `gpu` are facts given along.
    """

    text: str
    versions: str = ""
    note: str = ""
    model_config: dict[str, Any] | None = None
    draft_model_config: dict[str, Any] | None = None
    gpu: str | None = None


@dataclass(frozen=True)
class Declaration:
    """What a rule is, apart from how it is checked.

    Attributes:
        id: stable kebab-case id, never reused; begins with its area.
        title: one line, for lists and SARIF's short description.
        explanation: why the rule exists and what happens without it (Markdown).
        remedy: what to do about a finding (Markdown).
        severity: of its findings.
        gate, area: where it belongs.
        versions: PEP 440 specifier of the vLLM versions that have it; empty for all.
        source: `file::function` in vLLM, or an RFC or paper.
        bad, good: examples; every configuration and request rule has at least one of each.
        covers: ids of the rows of `tests/rules/inventory/inventory.csv` (the sites in vLLM that
            refuse or change something) that this rule answers for.
    """

    id: str
    title: str
    explanation: str
    remedy: str
    severity: Severity
    area: str
    source: str
    gate: Gate = Gate.CONFIGURATION
    versions: str = ""
    bad: tuple[Example, ...] = ()
    good: tuple[Example, ...] = ()
    covers: tuple[str, ...] = ()

    def applies_to(self, version: Version) -> bool:
        """Whether `version` has this rule; a fork counts as the release it is based on."""
        return not self.versions or _contains(self.versions, version)

    def as_json(self) -> dict[str, Any]:
        """Render as `GET /rules/{id}` does."""
        return {
            "id": self.id,
            "title": self.title,
            "severity": self.severity.value,
            "gate": self.gate.value,
            "area": self.area,
            "versions": self.versions or "all",
            "source": self.source,
            "explanation": self.explanation,
            "remedy": self.remedy,
            "bad": [example.text for example in self.bad],
            "good": [example.text for example in self.good],
        }


@lru_cache(maxsize=4096)
def _contains(versions: str, version: Version) -> bool:
    return SpecifierSet(versions, prereleases=True).contains(Version(version.base_version))
