"""From the bytes of a case to the lines of its answer; what the edges share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.batch import Answer, Line
from app.documents import encode_json
from app.replay.report import Report, report_on
from app.replay.rows_detail import RowTable, row_table
from app.replay.wire.case import read_case

NDJSON: Final = "application/x-ndjson"
EXIT: Final[dict[str, int]] = {"consistent": 0, "inconsistent": 1, "unproven": 3}


@dataclass(frozen=True, slots=True)
class Replayed:
    """A report and, where asked for, the rows behind it, a table for each choice."""

    report: Report
    tables: tuple[RowTable, ...] = ()


def replay_case(case: Mapping[str, Any] | bytes | str, *, rows: bool = False) -> Replayed:
    """Replay a case, with its rows where asked for.

    Raises:
        UnusableInput, UnknownVersion: see `app.replay.report.replay`.
    """
    evidence = read_case(case)
    tables: list[RowTable] = []
    observe = (lambda *seen: tables.append(row_table(*seen))) if rows else None
    return Replayed(report_on(evidence, observe), tuple(tables))


def report_lines(replayed: Replayed, line: int | None = None) -> Iterator[bytes]:
    """Write a report as a JSON line, and its rows as lines after it.

    Rows carry the case's `id` and, in a batch, its `line`, which tell whose they are.
    """
    report = replayed.report
    yield encode_json(report.as_json()) + b"\n"
    whose: dict[str, Any] = {} if report.id is None else {"id": report.id}
    if line is not None:
        whose["line"] = line
    for table in replayed.tables:
        for record in table.records():
            yield encode_json({**whose, **record}) + b"\n"


def line_handler(
    *,
    rows: bool = False,
    collect: bool = False,
    seen: Callable[[int, Replayed], None] | None = None,
) -> Callable[[Line], Answer]:
    """Make the handler of a batch of cases.

    Args:
        rows: write each case's rows after its report.
        collect: give the rows to `seen`.
        seen: is given the number of each line and what it came to.
    """

    def handle(line: Line) -> Answer:
        replayed = replay_case(line.data, rows=rows or collect)
        if seen is not None:
            seen(line.number, replayed)
        written = replayed if rows else Replayed(replayed.report)
        text = b"".join(report_lines(written, line.number))
        return Answer(text, EXIT[replayed.report.verdict])

    return handle
