"""Asks vLLM again about the cases of tests/rules/seed_answers.jsonl, and writes its answers there.

    python -m lab.seed_answers [VERSION...]             re-records these versions' answers
    python -m lab.seed_answers VERSION --check 20       asks every 20th case, tells what differs

The file's first line has the versions, the texts that answers are indexes into, and what matters of
the models' config.json; a case that a version was not asked about stays so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from lab.environment import CHECKOUT, LabError
from lab.oracle import MODELS, Answer, Case, ask

ANSWERS: Final = CHECKOUT / "tests" / "rules" / "seed_answers.jsonl"
LONGEST: Final = 400
# Where a long text is cut depends on the lab's directory; so much of two that are the same agrees.
SAME: Final = 300
_ORGANISATION: Final = "org"


@dataclass(frozen=True, slots=True)
class Record:
    """The file: its head, and a row for each case."""

    head: dict[str, Any]
    rows: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file."""
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        return cls(head, rows)

    def asked_of(self, version: str) -> list[dict[str, Any]]:
        """Give the rows that a version has an answer to."""
        place = self.head["versions"].index(version)
        return [row for row in self.rows if row["answers"][place] is not None]

    def answer(self, row: dict[str, Any], version: str) -> str:
        """Give what a version said to a case."""
        index = row["answers"][self.head["versions"].index(version)]
        text: str = self.head["texts"][index]
        return text

    def put(self, row: dict[str, Any], version: str, text: str) -> None:
        """Note what a version says to a case."""
        texts = self.head["texts"]
        if text not in texts:
            texts.append(text)
        row["answers"][self.head["versions"].index(version)] = texts.index(text)

    def write(self, path: Path) -> None:
        """Write the file, without texts that no case has any more."""
        used = sorted({i for row in self.rows for i in row["answers"] if i is not None})
        place = {old: new for new, old in enumerate(used)}
        head = {**self.head, "texts": [self.head["texts"][i] for i in used]}
        rows = [
            {**row, "answers": [None if i is None else place[i] for i in row["answers"]]}
            for row in self.rows
        ]
        lines = [json.dumps(line, separators=(",", ":")) for line in (head, *rows)]
        path.write_text("\n".join(lines) + "\n")


def case_of(row: dict[str, Any]) -> Case:
    """Give a row as a case for the oracle; its models are those of the lab."""
    return Case(
        id=row["id"],
        args=tuple(arg.replace(f"{_ORGANISATION}/", f"{MODELS}/") for arg in row["args"]),
        env=row.get("env") or {},
        files=row.get("files") or {},
        platform=row["platform"],
        gpus=row.get("gpus", 8),
    )


def said(answer: Answer) -> str:
    """Give an answer as the file has it: the model runner, or the refusal."""
    if answer.accepted:
        return "V2" if answer.facts.get("use_v2_model_runner") is True else "V1"
    text = " ".join(str(answer.cause or answer.error or "")[:LONGEST].split())
    return f"[{answer.stage}] {text.replace(f'{MODELS}/', f'{_ORGANISATION}/')}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.seed_answers", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--check", type=int, metavar="N", help="only compare every Nth case")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    record = Record.read(ANSWERS)
    different = 0
    try:
        for version in options.versions or record.head["versions"]:
            rows = record.asked_of(version)[:: options.check or 1]
            answers = ask(version, [case_of(row) for row in rows], jobs=options.jobs)
            for row, answer in zip(rows, answers, strict=True):
                before, now = record.answer(row, version), said(answer)
                if before[:SAME] != now[:SAME]:
                    different += 1
                    print(f"{version}: {row['id']}: {before[:150]!r}, now {now[:150]!r}")
                    record.put(row, version, now)
            print(f"{version}: {len(rows)} cases asked")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    if options.check is None:
        record.write(ANSWERS)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
