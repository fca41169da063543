"""What is wrong with the words of a container, whichever vLLM reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from app.errors import AdmissionError
from app.proposal.pieces import Piece
from app.proposal.proposal import Proposal
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, ReplaceArgument

# Options whose value is a JSON object, by how they end.
_JSON_OPTION: Final = re.compile(r"--[\w-]+[-_](config|kwargs|overrides|per[-_]prompt)")


def quoted_json(proposal: Proposal) -> Iterator[Finding]:
    """Find JSON in quotes that no shell takes away, among words that are strings of their own."""
    words = proposal.words
    for i, word in enumerate(words):
        option, equals, value = word.text.partition("=")
        if not equals:
            option, value = words[i - 1].text if i else "", word.text
        if value[:2] not in {"'{", '"{'} or not _JSON_OPTION.fullmatch(option):
            continue
        inner = _without_quotes(value)
        if inner is not None:
            new = f"{option}={inner}" if equals else inner
            yield Finding(
                rule="kubernetes-quoted-json",
                severity=Severity.ERROR,
                message=f"the quotes around the JSON of {option} reach vLLM; leave them out",
                location=word.location,
                fix=Fix("leave the outer quotes out", (ReplaceArgument(i, new),), safe=True),
            )


def _without_quotes(value: str) -> str | None:
    if len(value) < 4 or value[0] != value[-1]:
        return None
    candidates = [value[1:-1]]
    if value[0] == '"':
        candidates.append(value[1:-1].replace('\\"', '"'))
    for text in candidates:
        try:
            if isinstance(json.loads(text), dict):
                return text
        except ValueError:
            continue
    return None


def one_word(command: Piece) -> Finding:
    """Say that a whole command is the name of no program."""
    return Finding(
        rule="kubernetes-one-word-command",
        severity=Severity.ERROR,
        message=(
            f"there is no program called {command.text[:60]!r}; without a shell each word is an "
            "item of its own"
        ),
        location=command.word.location,
    )


def script_unread(script: Piece, error: AdmissionError) -> Finding:
    """Say that a script starts a server in a way that is not understood: all is open."""
    told = "; ".join([error.detail, *(problem.detail for problem in error.problems)])
    return Finding(
        rule="kubernetes-script-unread",
        severity=Severity.WARNING,
        message=f"this script cannot be read, so its server was not judged: {told}",
        location=script.word.location,
        undecided=True,
    )


def unlisted(command: Sequence[Piece] | None) -> Piece | None:
    """Give the first word of a command if it is a whole command."""
    first = command[0] if command else None
    if first is None or not re.search(r"\S\s+\S", first.text):
        return None
    return first
