"""Compares our whole verdict with real vLLM's engine configuration, on generated proposals.

    python -m lab.engine_agreement VERSION... [--count N] [--list DIR] [--docs FILE]

Prints a table per version, platform and model family, and every disagreement grouped by the line
of vLLM that refuses. vLLM's answers are kept in the lab, so a second run asks only what is new.
Exit code 1 if a proposal that vLLM accepts is rejected, or agreement is below the goal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.evaluate import judge_only
from app.verdict.finding import Severity
from app.verdict.verdict import Outcome, Verdict
from lab.engine_cases import EngineCase, engine_cases
from lab.environment import Lab, LabError
from lab.oracle import Answer, Oracle

VERSIONS: Final = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
COUNT: Final = 2150  # some have no answer, and 2,000 are to be left
GOAL: Final = 0.99
_BEGIN: Final = "<!-- engine agreement: begin -->"
_END: Final = "<!-- engine agreement: end -->"
# The lab has no optional packages, and newer ones than an old release had; a machine that runs
# vLLM may. Such a refusal is not vLLM's answer to the configuration.
_NOT_TOLD: Final = re.compile(
    r"No module named|Failed to import Ray|is not installed|Please install|requires the \w+ package"
    r"|Install via|failed to be inspected|could not locate think start/end tokens"
    # Files of the machine, which nobody told us of.
    r"|Invalid repository ID or local directory|Failed to load mistral|binary was not found"
    r"|Cannot find the config file for|Cannot find an appropriate cached snapshot|Repo id must use"
    # terratorch and compiled kernels, which the lab has not.
    r"|no attribute 'is_text_generation_model'|'_OpNamespace' '_C' object"
)
# Rules about what vLLM checks only after its engine configuration, where the oracle ends.
_LATER: Final = frozenset({"lora-runtime-updating"})
_SPECIFIC: Final = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?|'[^']*'|\"[^\"]*\"|\[[^\]]*\]")


class Agreement(StrEnum):
    """How our verdict relates to vLLM's."""

    SAME = "same"
    FALSE_REJECTION = "false rejection"
    MISSED = "missed refusal"
    UNDETERMINED = "undetermined"
    UNKNOWN = "no answer"


@dataclass(frozen=True)
class Comparison:
    """One proposal, vLLM's answer and our verdict."""

    version: str
    asked: EngineCase
    answer: Answer
    verdict: Verdict

    @cached_property
    def agreement(self) -> Agreement:
        if self.answer.accepted is None:
            return Agreement.UNKNOWN
        if not self.answer.accepted and _NOT_TOLD.search(self.reason):
            return Agreement.UNKNOWN
        if self.verdict.outcome is Outcome.UNDETERMINED:
            return Agreement.UNDETERMINED
        if self.answer.accepted != self._refused_in_time:
            return Agreement.SAME
        return Agreement.FALSE_REJECTION if self.answer.accepted else Agreement.MISSED

    @property
    def _refused_in_time(self) -> bool:
        errors = {f.rule for f in self.verdict.findings if f.severity is Severity.ERROR}
        return not self.verdict.accepted and not errors <= _LATER

    @property
    def reason(self) -> str:
        """Why vLLM refuses, in its words; empty if it does not."""
        return " ".join(str(self.answer.cause or self.answer.error or "").split())

    @property
    def site(self) -> str:
        """The function of vLLM that refuses, without the line, which moves between versions."""
        where = self.answer.where or self.answer.stage
        return re.sub(r":\d+ ", "::", where)

    @property
    def group(self) -> tuple[str, str]:
        """What disagreements are gathered by."""
        if self.agreement is Agreement.MISSED:
            return self.site, _SPECIFIC.sub("…", self.reason)[:110]
        rules = sorted({f.rule for f in self.verdict.findings if _decides(f)})
        return " ".join(rules), ""

    def __str__(self) -> str:
        case = self.asked.case
        env = " ".join(f"{name}={value}" for name, value in case.env.items())
        words = " ".join(case.args[1:])
        told = f"{self.asked.model} on {case.platform}:{case.gpus}"
        told += f" (draft: {self.asked.draft})" if self.asked.draft else ""
        lines = [f"{self.version} {told}: {env} {words}".replace("  ", " ")]
        if self.answer.accepted is False:
            lines.append(f"vLLM: {self.answer.where}: {self.reason[:300]}")
        lines += [f"we: {f.rule}: {f.message[:300]}" for f in self.verdict.findings if _decides(f)]
        return "\n      ".join(lines)


def _decides(finding: Any) -> bool:
    return bool(finding.severity is Severity.ERROR or finding.undecided)


class Answers:
    """vLLM's answers of one version, kept by what was asked."""

    def __init__(self, lab: Lab, version: str) -> None:
        self.lab, self.version = lab, version
        self.path = lab.home / "cache" / f"engine-answers-{version}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                row = json.loads(line)
                self.known[row["key"]] = row["answer"]

    def has(self, case: EngineCase) -> bool:
        """Whether vLLM was asked before."""
        return _key(case) in self.known

    def of(self, cases: Sequence[EngineCase], *, jobs: int = 1) -> Iterator[Answer]:
        """Give the answers in the order of the cases; ask for those not known yet.

        Raises:
            LabError: that version is not installed, or its process ended.
        """
        new = [case for case in cases if _key(case) not in self.known]
        if new:
            with (
                Oracle(self.version, jobs=jobs, lab=self.lab) as oracle,
                self.path.open("a") as log,
            ):
                for case, answer in zip(new, oracle.ask(c.case for c in new), strict=True):
                    row = self.known[_key(case)] = answer.as_json()
                    print(json.dumps({"key": _key(case), "answer": row}), file=log, flush=True)
        for case in cases:
            row = self.known[_key(case)]
            yield Answer(**row | {"warnings": tuple(row["warnings"])})


def _key(case: EngineCase) -> str:
    text = json.dumps([case.as_json(), case.case.files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def compare(
    version: str, cases: Sequence[EngineCase], answers: Iterable[Answer]
) -> Iterator[Comparison]:
    """Judge each case and put the two answers side by side."""
    catalogue = CatalogueLibrary().get(version)
    for case, answer in zip(cases, answers, strict=True):
        verdict = judge_only(read_envelope(case.envelope()).proposal, catalogue)
        yield Comparison(version, case, answer, verdict)


def table(compared: Sequence[Comparison], by: str, key: Callable[[Comparison], str]) -> list[str]:
    """Give a Markdown table with a row for each value of `key`."""
    rows: dict[str, list[Comparison]] = defaultdict(list)
    for one in compared:
        if one.agreement is not Agreement.UNKNOWN:
            rows[key(one)].append(one)
    columns = ("proposals", "vLLM refuses", "same verdict", "false rejections")
    heads = (by, *columns, "missed refusals", "undetermined")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, those in rows.items():
        counts = Counter(one.agreement for one in those)
        refused = sum(one.answer.accepted is False for one in those)
        lines.append(
            f"| {name} | {len(those)} | {refused} | {counts[Agreement.SAME] / len(those):.1%} "
            f"| {counts[Agreement.FALSE_REJECTION]} | {counts[Agreement.MISSED]} "
            f"| {counts[Agreement.UNDETERMINED]} |"
        )
    return lines


def tables(compared: Sequence[Comparison]) -> str:
    """Give the three tables: by version, by version and platform, by model family."""
    parts = [
        table(compared, "vLLM", lambda c: c.version),
        table(compared, "vLLM, platform", lambda c: f"{c.version}, {c.asked.case.platform}"),
        table(
            sorted(compared, key=lambda c: c.asked.family), "model family", lambda c: c.asked.family
        ),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def groups(compared: Iterable[Comparison], kind: Agreement) -> str:
    """List the disagreements of one kind, those with most first, with up to three examples."""
    found: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for one in compared:
        if one.agreement is kind:
            found[one.group].append(one)
    lines = []
    for (site, said), those in sorted(found.items(), key=lambda item: -len(item[1])):
        versions = ", ".join(dict.fromkeys(one.version for one in those))
        lines.append(f"## {len(those)} x {site} ({versions})\n   {said}".rstrip())
        lines += [f"    - {one}" for one in those[:3]]
    return "\n".join(lines) + "\n"


def summary(compared: Iterable[Comparison], kind: Agreement) -> str:
    """Give a line for each group of disagreements of one kind."""
    counts = Counter(one.group for one in compared if one.agreement is kind)
    return "\n".join(f"| `{site}` | {said} | {n} |" for (site, said), n in counts.most_common())


def write_docs(page: Path, compared: Sequence[Comparison]) -> None:
    """Put the tables between the markers of a page."""
    listed = [
        f"\n{kind.value.capitalize()}s, by vLLM's raise site or our rule:\n\n"
        f"| where | what vLLM says | proposals |\n|---|---|---|\n{text}"
        for kind in (Agreement.FALSE_REJECTION, Agreement.MISSED, Agreement.UNDETERMINED)
        if (text := summary(compared, kind))
    ]
    text = page.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    body = "\n".join([tables(compared), *listed])
    page.write_text(f"{before}{_BEGIN}\n\n{body}\n\n{_END}{after}")


def _run(lab: Lab, versions: Sequence[str], options: argparse.Namespace) -> list[Comparison]:
    compared: list[Comparison] = []
    for version in versions:
        cases = engine_cases(version, options.count, seed=options.seed)
        known = Answers(lab, version)
        if options.known:
            cases = [case for case in cases if known.has(case)]
        answers = known.of(cases, jobs=options.jobs)
        compared.extend(compare(version, cases, answers))
    return compared


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.engine_agreement", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--count", type=int, default=COUNT, help="proposals for each version")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="cases worked on at once")
    parser.add_argument("--known", action="store_true", help="ask nothing: only known answers")
    parser.add_argument("--list", type=Path, metavar="DIR", help="write missed.txt, false.txt, …")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="page to put the tables into")
    options = parser.parse_args(arguments)
    try:
        compared = _run(Lab.default(), options.versions, options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    print(tables(compared))
    files = {
        "false.txt": Agreement.FALSE_REJECTION,
        "missed.txt": Agreement.MISSED,
        "undetermined.txt": Agreement.UNDETERMINED,
    }
    for name, kind in files.items():
        text = groups(compared, kind)
        if options.list is not None:
            options.list.mkdir(parents=True, exist_ok=True)
            (options.list / name).write_text(text)
        elif text.strip():
            print(f"\n# {kind}\n\n{text}")
    if options.docs is not None:
        write_docs(options.docs, compared)
    answered = [one for one in compared if one.agreement is not Agreement.UNKNOWN]
    counts = Counter(one.agreement for one in answered)
    good = counts[Agreement.SAME] >= GOAL * len(answered)
    return int(not good or bool(counts[Agreement.FALSE_REJECTION]))


if __name__ == "__main__":
    sys.exit(main())
