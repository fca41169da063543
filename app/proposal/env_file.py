"""Environment files, as `docker run --env-file` and Compose's `env_file` read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.proposal.positions import LineIndex
from app.proposal.proposal import Variable
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location


def read_env_file(
    text: str, source: str, surrounding: Mapping[str, Variable], *, quotes: bool = False
) -> Iterator[Variable]:
    """Give the variables of a file with a `NAME=VALUE` a line.

    Docker takes everything after `=` as it is; Compose (`quotes`) takes quotes off and drops
    comments. A `NAME` alone takes its value from the surroundings.
    """
    index = LineIndex(text, source)
    start = 0
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        begin = start + len(line) - len(line.lstrip())
        start += len(line)
        if not stripped or stripped.startswith("#"):
            continue
        written = stripped.removeprefix("export ").lstrip() if quotes else stripped
        name, equals, value = written.partition("=")
        name = name.strip()
        location = index.location(begin, begin + len(stripped))
        place = Location(
            source=source,
            variable=name,
            line=location.line,
            column=location.column,
            end_line=location.end_line,
            end_column=location.end_column,
            text=location.text,
        )
        if equals:
            yield Variable(name, _unquoted(value) if quotes else value, place)
        elif (known := surrounding.get(name)) is not None:
            yield Variable(name, known.value, place, known.unresolved)


def _unquoted(value: str) -> str:
    value = value.strip()
    if value[:1] in {"'", '"'}:
        end = value.find(value[0], 1)
        return value[1:end] if end > 0 else value
    return value.partition(" #")[0].rstrip()


def unseen_env_file(name: str, place: Location | None) -> Finding:
    """Say that a file of variables was not given along."""
    return Finding(
        rule="env-file-unseen",
        severity=Severity.WARNING,
        message=(
            f"the variables in {name} are not known; give its text under `files`, or write the "
            "variables out"
        ),
        location=place,
        undecided=True,
    )
