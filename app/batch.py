"""JSON lines in, JSON lines out, in order; a line that cannot be used is answered too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from app.documents import decode_json, decode_text
from app.errors import AdmissionError


@dataclass(frozen=True, slots=True)
class Answer:
    """What one line came to: the object to write, and its exit code."""

    body: dict[str, Any]
    exit_code: int


def answers(
    lines: Iterable[bytes], handle: Callable[[Any], Answer], *, unusable: int
) -> Iterator[Answer]:
    """Handle each line that is not blank; memory is bounded by the longest line.

    A line that is not JSON, or that `handle` refuses with an `AdmissionError`, gives
    `{"id", "line", "error": problem}` with the exit code `unusable`.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        document: Any = None
        try:
            document = decode_json(decode_text(line, what="line"), what="line")
            yield handle(document)
        except AdmissionError as error:
            yield Answer(_failure(document, number, error), unusable)


def write(answer: Answer) -> str:
    """Render one line of output."""
    return json.dumps(answer.body, ensure_ascii=False, separators=(",", ":")) + "\n"


def _failure(document: Any, number: int, error: AdmissionError) -> dict[str, Any]:
    body: dict[str, Any] = {"line": number, "error": error.problem_json()}
    if isinstance(document, dict) and "id" in document:
        body = {"id": document["id"], **body}
    return body
