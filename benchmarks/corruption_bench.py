"""How surely each kind of corruption is caught, and whether honest rows are left alone.

    python benchmarks/corruption_bench.py [--trials 40] [--honest 100000]

Honest rollouts come from the simulated backend, of several versions and sampling parameters, with
logprobs for every id of the masks. Each kind of `tests/replay/corruptions` is done to rollouts of
1, 32 and 1,024 rows; kinds that change one row change one, whatever the length. Caught means that
the report says inconsistent, or that the case is refused as unreadable. Everything is seeded, so
the table comes out the same every time. Exit code 1 if a kind that must be caught at 1,024 rows is
not, or an honest rollout is refuted.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.errors import UnusableInput
from app.replay.report import ReplayVerdict, Report, replay
from app.verdict.finding import Severity
from tests.replay.corruptions import KINDS, Kind
from tests.replay.corruptions.rows import Case
from tests.replay.corruptions.source import honest_case

LENGTHS = (1, 32, 1024)
# Honest rollouts of these lengths, with and without seed, covered and not.
_HONEST_ROWS = 500
_HONEST_SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"seed": None},
    {"logprobs": 5},
    {"logprobs": None},
    {"n": 3},
)


@dataclass
class Tally:
    """What became of one kind at one length."""

    trials: int = 0
    caught: int = 0
    told: int = 0
    by: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one trial."""
        self.trials += 1
        self.caught += outcome.caught
        self.told += outcome.told
        self.by.update(outcome.rules[:1])

    @property
    def rate(self) -> str:
        """The share that was caught."""
        return f"{self.caught / self.trials:.2f}" if self.trials else "-"


@dataclass(frozen=True)
class Outcome:
    """What the report of one case says.

    Attributes:
        caught: it is refuted, or refused as unreadable.
        told: at least a warning was given.
        rules: the findings without remarks, the most severe first; a refusal's code.
    """

    caught: bool
    told: bool
    rules: tuple[str, ...]


def judge(case: Case) -> Outcome:
    """Replay a case and say whether anything was noticed."""
    try:
        report = replay(case)
    except UnusableInput as refusal:
        return Outcome(True, True, (f"refused: {refusal.problems[0].code}",))
    caught = report.verdict is ReplayVerdict.INCONSISTENT
    told = caught or any(finding.severity is not Severity.INFO for finding in report.findings)
    return Outcome(caught, told, tuple(_rules(report)))


def _rules(report: Report) -> Iterator[str]:
    """Errors, then warnings; those with the most failed rows first."""
    order = list(Severity)
    yield from dict.fromkeys(
        finding.rule
        for finding in sorted(
            (finding for finding in report.findings if finding.severity is not Severity.INFO),
            key=lambda f: (order.index(f.severity), -f.evidence.get("rows_failed", 0)),
        )
    )


@lru_cache(maxsize=512)
def honest(number: int, rows: int, n: int, seeded: bool) -> Case:
    """Give an honest case; kept, since every kind begins with the same ones."""
    shape: dict[str, Any] = {"n": n} if n > 1 else {}
    return honest_case(number, rows, **shape, **({} if seeded else {"seed": None}))


def try_kind(kind: Kind, rows: int, trials: int, *, seeded: bool) -> Tally:
    """Corrupt honest rollouts of `rows` rows and count what is caught."""
    tally = Tally()
    for number in range(trials):
        case = honest(number, rows, kind.choices, seeded)
        corrupted = kind.corrupt(case, random.Random(number))  # noqa: S311 - the same every time
        if corrupted is not None:
            tally.add(judge(corrupted))
    return tally


def table(trials: int, *, seeded: bool) -> bool:
    """Print the table; gives whether all that must be caught was."""
    print("| corruption | " + " | ".join(f"{rows:,}" for rows in LENGTHS) + " | found by |")
    print("|---|" + "---|" * (len(LENGTHS) + 1))
    complete = True
    for kind in KINDS:
        tallies = [
            try_kind(kind, rows, trials if rows < LENGTHS[-1] else trials // 4, seeded=seeded)
            for rows in LENGTHS
        ]
        found = tallies[-1].by or tallies[-2].by
        by = ", ".join(f"`{name.removeprefix('replay-')}`" for name, _ in found.most_common(2))
        print(f"| {kind.name} | {' | '.join(t.rate for t in tallies)} | {by or '-'} |", flush=True)
        if not kind.unseen and tallies[-1].caught < tallies[-1].trials:
            complete = False
    return complete


def false_alarms(rows: int) -> bool:
    """Replay honest rows of every shape; gives whether none was refuted."""
    total, refuted, number = 0, 0, 0
    outcomes: Counter[str] = Counter()
    warned: Counter[str] = Counter()
    while total < rows:
        case = honest_case(10_000 + number, _HONEST_ROWS, **_HONEST_SHAPES[number % 5])
        report = replay(case)
        number += 1
        total += report.rows["total"]
        outcomes.update({name: report.rows[name] for name in ("exact", "mismatch", "undecidable")})
        refuted += report.verdict is ReplayVerdict.INCONSISTENT
        warned.update({f.rule for f in report.findings if f.severity is Severity.WARNING})
    print(
        f"{total:,} honest rows in {number} rollouts: {refuted} refuted; "
        + ", ".join(f"{count:,} {name}" for name, count in outcomes.items())
        + "".join(f"; {count} warned of by {rule}" for rule, count in warned.items())
    )
    return refuted == 0


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40, help="a quarter of it for 1,024 rows")
    parser.add_argument("--honest", type=int, default=100_000, help="honest rows to replay")
    parser.add_argument("--unseeded", action="store_true", help="the table of unseeded rollouts")
    arguments = parser.parse_args()
    complete = table(arguments.trials, seeded=not arguments.unseeded)
    quiet = false_alarms(arguments.honest) if arguments.honest else True
    return 0 if (complete or arguments.unseeded) and quiet else 1


if __name__ == "__main__":
    sys.exit(main())
