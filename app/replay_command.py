"""What `vllm-admission replay` does: cases from a file, reports to standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from app.batch import Answer, Batch, Line, failure
from app.documents import encode_json
from app.errors import AdmissionError, UnusableInput
from app.inputs import UNUSABLE, answer_lines, read_input, write_answers
from app.replay.report import Report, render_text
from app.replaying import EXIT, Replayed, line_handler, replay_case
from app.tables import ArrowSink, kind_of_name, read_cases, table_kind

_RENDERERS: Final[dict[str, Callable[[Report], str]]] = {
    "text": render_text,
    "json": lambda report: json.dumps(report.as_json(), indent=2) + "\n",
    "jsonl": lambda report: encode_json(report.as_json()).decode() + "\n",
}


class RowSink(Protocol):
    """Where the rows of replayed cases go."""

    def write(self, columns: dict[str, list[Any]]) -> None:
        """Add the rows of one choice, a column each."""
        ...

    def close(self) -> None:
        """End the file."""
        ...


class JsonSink:
    """Writes rows as JSON lines, without the members that are not known of any."""

    def __init__(self, path: Path) -> None:
        """Begin the file.

        Raises:
            UnusableInput: it cannot be written.
        """
        try:
            self._stream = path.open("wb")
        except OSError as error:
            raise UnusableInput(f"{path} cannot be written: {error.strerror}") from None

    def write(self, columns: dict[str, list[Any]]) -> None:
        """Add the rows of one choice, a column each."""
        known = {
            name: values
            for name, values in columns.items()
            if name not in {"id", "line"} or values[:1] not in ([], [None])
        }
        for row in zip(*known.values(), strict=True):
            self._stream.write(encode_json(dict(zip(known, row, strict=True))) + b"\n")

    def close(self) -> None:
        """End the file."""
        self._stream.close()


def replay_file(name: str, output: str, rows: Path | None) -> int:
    """Replay the one case in a file, `-` being standard input; gives the exit code.

    Raises:
        AdmissionError: it cannot be read.
    """
    with _sink(rows) as sink:
        replayed = replay_case(read_input(name), rows=sink is not None)
        if sink is not None:
            _write_rows(sink, None, replayed)
    sys.stdout.write(_RENDERERS[output](replayed.report))
    return EXIT[replayed.report.verdict]


def replay_lines(name: str, limit: int, rows: Path | None) -> int:
    """Replay a case a line, or a row of a Parquet or Arrow file; gives the exit code.

    Args:
        name: of the file, `-` being standard input.
        limit: longest line in bytes.
        rows: the file to write the replayed rows to.

    Raises:
        AdmissionError: the file cannot be read at all.
    """
    kind = None if name == "-" else table_kind(Path(name))
    with _sink(rows) as sink:

        def seen(line: int, replayed: Replayed) -> None:
            if sink is not None:
                _write_rows(sink, line, replayed)

        handle = line_handler(collect=sink is not None, seen=seen)
        if kind is None:
            return answer_lines(name, limit, handle)
        batch = Batch(handle, limit=limit, unusable=UNUSABLE)
        return write_answers(_of_table(name, batch, kind))


def is_table(name: str) -> bool:
    """Whether a file is a Parquet or Arrow file, a case a row.

    Raises:
        UnusableInput: it cannot be read.
    """
    return name != "-" and table_kind(Path(name)) is not None


def _of_table(name: str, batch: Batch, kind: str) -> Iterator[Answer]:
    for number, make in enumerate(read_cases(Path(name), kind), start=1):
        try:
            line = Line(number, make())
        except AdmissionError as error:
            yield Answer(failure(number, error), UNUSABLE)
        else:
            yield batch.answer(line)


def _write_rows(sink: RowSink, line: int | None, replayed: Replayed) -> None:
    for table in replayed.tables:
        count = len(table)
        sink.write({"id": [replayed.report.id] * count, "line": [line] * count, **table.columns()})


@contextmanager
def _sink(path: Path | None) -> Iterator[RowSink | None]:
    if path is None:
        yield None
        return
    kind = kind_of_name(path)
    sink: RowSink = JsonSink(path) if kind is None else ArrowSink(path, kind)
    try:
        yield sink
    finally:
        sink.close()
