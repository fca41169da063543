"""Compares our verdicts with real vLLM's: `python -m lab.agreement VERSION...`.

Prints, for each version, how many of the seed cases get the same verdict, and lists the
others. Exit code 1 if a configuration that vLLM accepts is rejected or left open.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.evaluate import judge_only
from app.verdict.verdict import Outcome, Verdict
from lab.environment import Lab, LabError
from lab.oracle import MODELS, Answer, Case, ask
from lab.seed_cases import CONFIGS, seed_cases

GPU_NAMES = {"a100": "NVIDIA A100-SXM4-80GB", "h100": "NVIDIA H100 80GB HBM3"}


class Agreement(StrEnum):
    """How our verdict relates to vLLM's."""

    SAME = "same"
    FALSE_REJECTION = "false rejection"
    LEFT_OPEN = "left open"
    MISSED = "missed refusal"
    UNKNOWN = "no answer"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case, vLLM's answer and our verdict."""

    case: Case
    answer: Answer
    verdict: Verdict

    @property
    def agreement(self) -> Agreement:
        if self.answer.accepted is None:
            return Agreement.UNKNOWN
        if self.verdict.outcome is Outcome.UNDETERMINED:
            return Agreement.LEFT_OPEN
        if self.answer.accepted:
            return Agreement.SAME if self.verdict.accepted else Agreement.FALSE_REJECTION
        return Agreement.MISSED if self.verdict.accepted else Agreement.SAME

    @property
    def reason(self) -> str:
        """Why vLLM refuses; empty if it does not."""
        return " ".join(str(self.answer.cause or self.answer.error or "").split())

    def __str__(self) -> str:
        ours = "; ".join(f"{f.rule}: {f.message}" for f in self.verdict.findings)
        return f"{self.agreement}: {self.case.id}: vLLM: {self.reason[:200]!r}; we: {ours[:200]!r}"


@cache
def _model_configs() -> dict[str, Any]:
    return {name: files["config.json"] for name, files in json.loads(CONFIGS.read_text()).items()}


def envelope_of(case: Case) -> dict[str, Any]:
    """Tell the gate all that the oracle is told, and the model's config.json."""
    gpu = case.platform.removeprefix("cuda-")
    envelope: dict[str, Any] = {
        "args": list(case.args),
        "env": dict(case.env),
        "files": dict(case.files),
        "hardware": {"gpu": GPU_NAMES.get(gpu, gpu), "count": case.gpus},
    }
    if gpu == case.platform:
        envelope["hardware"] = {"gpu": "cpu", "count": 0}
    model = case.args[0].removeprefix(f"{MODELS}/") if case.args else ""
    if model in _model_configs():
        envelope["model_config"] = _model_configs()[model]
    return envelope


def compare(version: str, cases: Iterable[Case], *, jobs: int = 2) -> Iterator[Comparison]:
    """Ask real vLLM and ourselves about each case."""
    catalogue = CatalogueLibrary().get(version)
    cases = tuple(cases)
    for case, answer in zip(cases, ask(version, cases, jobs=jobs), strict=True):
        proposal = read_envelope(envelope_of(case)).proposal
        yield Comparison(case, answer, judge_only(proposal, catalogue))


def main(versions: Sequence[str]) -> int:
    failed = False
    try:
        for version in versions or Lab.default().versions():
            compared = tuple(compare(version, seed_cases()))
            counts = {kind: sum(c.agreement is kind for c in compared) for kind in Agreement}
            said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
            print(f"vLLM {version}: {len(compared)} cases: {said}")
            for comparison in compared:
                if comparison.agreement is not Agreement.SAME:
                    print(f"  {comparison}")
            failed |= bool(counts[Agreement.FALSE_REJECTION] + counts[Agreement.LEFT_OPEN])
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
