"""Asks real vLLM about every example of the rules: `python -m lab.examples VERSION...`.

    python -m lab.examples 0.32.0 0.33.0 --area speculative --area lora

Each example becomes a case for the oracle, and both sides are told the same facts. Listed are

- a *false rejection*: vLLM accepts what our verdict refuses (a bad example of an error rule);
- a *missed refusal*: vLLM refuses what our verdict accepts (a good example, or that of a warning);
- *another reason*: vLLM refuses a bad example of an error rule, but not in the function that the
  rule names as its source, nor with the text that it quotes.

Exit code 1 if there is one of the first two.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import Any, Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from app.catalogue import CatalogueLibrary
from app.kubernetes.read import looks_like_manifests
from app.proposal.proposal import Hardware, Proposal
from app.proposal.shell import parse_command
from app.rules.declaration import Declaration, Example
from app.rules.evaluate import judge_only
from app.rules.registry import default_registry
from app.verdict.finding import Finding, Severity
from app.verdict.verdict import Outcome, Verdict
from lab.environment import Lab, LabError
from lab.oracle import GPUS, Answer, Case, ask
from lab.seed_cases import CONFIGS

# What an example that tells of no model is about; it goes by the name that the example uses.
DEFAULT_MODEL: Final = "llama3-8b"
MODEL_NAME: Final = "m"
DRAFT_NAME: Final = "draft"
_DRAFT_PATH: Final = re.compile(r'"model": "([^"]+)"')
# Refusals that tell of the lab: no hub, and packages that are not installed.
_UNANSWERABLE: Final = (
    "Invalid repository ID",
    "failed to be inspected",
    "Arctic Inference is required",
    "Failed to import Ray",
    "No module named 'lmcache'",
    "vllm-rs binary was not found",
    "Couldn't instantiate the backend tokenizer",
    "runai_model_streamer",
    "Cannot find the config file for",
)
# So do these, unless a rule refuses the name as well.
_NO_SUCH_MODEL: Final = ("Repo id must ", "Cannot find an appropriate cached snapshot")
# Rules of what vLLM refuses right after the configuration, where the oracle has stopped.
_AFTER_CONFIGURATION: Final = frozenset({"lora-runtime-updating"})
GPU_COUNT: Final = 8


class Outcomes(StrEnum):
    """How an example fares."""

    SAME = "as vLLM"
    FALSE_REJECTION = "false rejection"
    MISSED = "missed refusal"
    ANOTHER_REASON = "another reason"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True)
class ExampleCase:
    """One example on one version, and what the oracle is asked."""

    declaration: Declaration
    example: Example
    bad: bool
    proposal: Proposal
    case: Case | None

    def __str__(self) -> str:
        kind = "bad" if self.bad else "good"
        facts = json.dumps(self.example.model_config) if self.example.model_config else ""
        return f"{self.declaration.id} ({kind}): {self.example.text} {facts[:160]}".rstrip()


@dataclass(frozen=True, slots=True)
class Compared:
    """One example, vLLM's answer and our verdict."""

    asked: ExampleCase
    answer: Answer | None
    verdict: Verdict

    @property
    def outcome(self) -> Outcomes:
        if self.answer is None or self.answer.accepted is None:
            return Outcomes.NOT_ASKED
        if any(text in _said(self.answer) for text in _UNANSWERABLE):
            return Outcomes.NOT_ASKED
        refused = self.verdict.outcome is Outcome.REJECTED
        if self.answer.accepted and self.asked.declaration.id in _AFTER_CONFIGURATION:
            return Outcomes.NOT_ASKED
        if self.answer.accepted:
            return Outcomes.FALSE_REJECTION if refused else Outcomes.SAME
        if not refused and any(text in _said(self.answer) for text in _NO_SUCH_MODEL):
            return Outcomes.NOT_ASKED
        if not refused:
            return Outcomes.MISSED if self.verdict.accepted else Outcomes.SAME
        if not self.asked.bad or self.asked.declaration.severity is not Severity.ERROR:
            return Outcomes.SAME
        return Outcomes.SAME if self._is_the_reason() else Outcomes.ANOTHER_REASON

    def _is_the_reason(self) -> bool:
        """Whether vLLM's refusal is the one that the rule tells of."""
        assert self.answer is not None
        quoted = (finding.engine_message for finding in self.findings)
        if any(text in _said(self.answer) for text in quoted if text):
            return True
        file, _, function = self.asked.declaration.source.partition("::")
        where = self.answer.where or ""
        return where.startswith(f"{file}:") and where.endswith(f" {function.split('.')[-1]}")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the example's own rule says."""
        return tuple(f for f in self.verdict.findings if f.rule == self.asked.declaration.id)

    def __str__(self) -> str:
        answer = self.answer
        said = f"{answer.where}: {_said(answer)[:240]}" if answer and not answer.accepted else ""
        ours = "; ".join(
            f"{f.rule}: {f.message}" for f in self.verdict.findings if f.severity is Severity.ERROR
        )
        return f"{self.outcome}: {self.asked}\n    vLLM: {said or 'accepts'}\n    we: {ours[:240]}"


def _said(answer: Answer) -> str:
    return " ".join(str(answer.cause or answer.error or "").split())


@cache
def model_config(name: str) -> Mapping[str, Any]:
    """Give the config.json of one of the lab's models."""
    files: Mapping[str, Mapping[str, Any]] = json.loads(CONFIGS.read_text())[name]
    found: Mapping[str, Any] = files["config.json"]
    return found


def example_cases(
    version: str, areas: Iterable[str] = (), *, first_only: bool = False
) -> Iterator[ExampleCase]:
    """Give the examples that hold for a version, of some areas or all.

    `first_only` leaves each error rule its first bad example, and other rules none.
    """
    wanted = frozenset(areas)
    for entry in default_registry().rules:
        declared = entry.declaration
        if not declared.applies_to(Version(version)) or (wanted and declared.area not in wanted):
            continue
        if first_only and declared.severity is not Severity.ERROR:
            continue
        for bad, examples in ((True, declared.bad), (False, () if first_only else declared.good)):
            asked = (e for e in examples if _holds(e, version) and _is_askable(e))
            for example in islice(asked, 1 if first_only else None):
                yield _example_case(declared, example, bad)


def _holds(example: Example, version: str) -> bool:
    return SpecifierSet(example.versions, prereleases=True).contains(Version(version))


def _is_askable(example: Example) -> bool:
    """Whether the oracle can be asked: it has no cluster."""
    return "undecided" not in example.note and not looks_like_manifests(example.text)


def _example_case(declared: Declaration, example: Example, bad: bool) -> ExampleCase:
    given = example.model_config
    told = dict(model_config(DEFAULT_MODEL)) if given is None else given
    proposal = replace(
        parse_command(example.text),
        model_config=told,
        draft_model_config=example.draft_model_config,
        hardware=Hardware(example.gpu or "NVIDIA H100", GPU_COUNT),
    )
    platform = _platform(example.gpu)
    if platform is None or any(word.unresolved for word in proposal.words):
        return ExampleCase(declared, example, bad, proposal, None)
    files = {f"{MODEL_NAME}/config.json": json.dumps(told)}
    if example.draft_model_config is not None:
        named = _DRAFT_PATH.search(example.text)
        path = named.group(1) if named else DRAFT_NAME
        files[f"{path}/config.json"] = json.dumps(example.draft_model_config)
    case = Case(
        args=tuple(word.text for word in proposal.words),
        env={name: variable.value for name, variable in proposal.environment.items()},
        platform=platform,
        gpus=GPU_COUNT,
        files=files,
    )
    return ExampleCase(declared, example, bad, proposal, case)


def _platform(gpu: str | None) -> str | None:
    """Name the oracle's platform; None for hardware that it cannot fake."""
    if gpu is None:
        return "cuda-h100"
    name = gpu.lower()
    if name == "cpu":
        return "cpu"
    # The longest first: `l40s` contains `l4`.
    found = next((known for known in sorted(GPUS, key=len, reverse=True) if known in name), None)
    return None if found is None else f"cuda-{found}"


def compare(
    version: str, areas: Iterable[str] = (), *, first_only: bool = False, jobs: int = 1
) -> tuple[Compared, ...]:
    """Ask real vLLM and ourselves about each example.

    Raises:
        LabError: the version is not in the lab, or its process ended.
    """
    catalogue = CatalogueLibrary().get(version)
    asked = tuple(example_cases(version, areas, first_only=first_only))
    cases = [one.case for one in asked if one.case is not None]
    answers = iter(ask(version, cases, jobs=jobs))
    return tuple(
        Compared(
            one,
            None if one.case is None else next(answers),
            judge_only(one.proposal, catalogue),
        )
        for one in asked
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what differs, per version."""
    parser = argparse.ArgumentParser(prog="python -m lab.examples", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--area", action="append", default=[], help="only rules of this area")
    parser.add_argument("--jobs", type=int, default=1, help="cases worked on at once")
    options = parser.parse_args(arguments)
    failed = False
    try:
        for version in options.versions or Lab.default().versions():
            compared = compare(version, options.area, jobs=options.jobs)
            counts = {kind: sum(c.outcome is kind for c in compared) for kind in Outcomes}
            said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
            print(f"vLLM {version}: {len(compared)} examples: {said}")
            for one in compared:
                if one.outcome not in {Outcomes.SAME, Outcomes.NOT_ASKED}:
                    print(f"  {one}")
            failed |= bool(counts[Outcomes.FALSE_REJECTION] + counts[Outcomes.MISSED])
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
