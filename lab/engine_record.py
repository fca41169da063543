"""Keeps some of vLLM's answers for the tests: `python -m lab.engine_record VERSION...`.

Writes `tests/rules/engine_answers/VERSION.jsonl` from the answers that `lab.engine_agreement`
keeps: of what vLLM refuses, a few for each line that refuses; of what it takes, those with the
most ingredients, with the values of its finished configuration that our rules derive too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lab.engine_agreement import COUNT, VERSIONS, Agreement, Answers, Comparison, compare
from lab.engine_cases import engine_cases
from lab.engine_values import VALUES, is_settled_later
from lab.environment import CHECKOUT, Lab

KEPT: Final = CHECKOUT / "tests" / "rules" / "engine_answers"
_EACH_SITE: Final = 3
_TAKEN: Final = 70
_REFUSED: Final = 130


def rows(version: str, count: int) -> Iterator[dict[str, Any]]:
    """Choose the answers to keep."""
    answers = Answers(Lab.default(), version)
    cases = [case for case in engine_cases(version, count) if answers.has(case)]
    compared = [
        one
        for one in compare(version, cases, answers.of(cases))
        if one.agreement is not Agreement.UNKNOWN
    ]
    taken = [one for one in compared if one.answer.accepted]
    taken.sort(key=lambda one: (-len(one.asked.areas), -len(one.asked.case.args)))
    sites: Counter[tuple[str, str]] = Counter()
    refused = []
    for one in compared:
        site = (one.site, one.reason[:60])
        if not one.answer.accepted and sites[site] < _EACH_SITE:
            sites[site] += 1
            refused.append(one)
    for one in (*taken[:_TAKEN], *refused[:_REFUSED]):
        yield _row(one)


def _row(one: Comparison) -> dict[str, Any]:
    row = one.asked.as_json()
    del row["areas"]
    row["args"] = row["args"][1:]
    if not one.answer.accepted:
        row["refuses"] = f"{one.site}: {one.reason[:120]}"
        if one.agreement is Agreement.MISSED:
            row["missed"] = True
        return row
    row["values"] = {
        name: one.answer.facts[name]
        for name in VALUES
        if name in one.answer.facts and not is_settled_later(one.asked, name)
    }
    return row


def record(version: str, count: int, directory: Path) -> int:
    """Write one version's file; gives the number of rows."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows(version, count)]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{version}.jsonl").write_text("\n".join(lines) + "\n")
    return len(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.engine_record", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args(arguments)
    for version in options.versions:
        print(f"vLLM {version}: {record(version, options.count, KEPT)} answers kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
