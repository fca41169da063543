"""`docker run … IMAGE ARGS`, and the same of podman and nerdctl."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.errors import MalformedDocument, Problem
from app.proposal.container_options import (
    SHORT_SWITCHES,
    SHORT_WITH_VALUE,
    SWITCHES,
    WITH_VALUE,
)
from app.proposal.env_file import read_env_file, unseen_env_file
from app.proposal.image import Image
from app.proposal.pieces import Piece, variable_of
from app.proposal.proposal import Variable
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

ENGINES: Final = frozenset({"docker", "podman", "nerdctl"})
_DEVICES: Final = re.compile(r'"?device=([^"]*)"?')


@dataclass(slots=True)
class Run:
    """What a `run` command says: the image, and what is started in it with what.

    `entrypoint` is None if the image's own is kept; an empty one is taken away. `gpus` is how
    many devices the container gets, if it is a number.
    """

    image: Image
    image_at: Location
    entrypoint: tuple[Piece, ...] | None
    arguments: Sequence[Piece]
    environment: dict[str, Variable] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    gpus: int | None = None


def run_begins(pieces: Sequence[Piece], at: int) -> int | None:
    """Give where the options of a `run` of the program at `at` begin; None if it is none."""
    words = [piece.literal for piece in pieces[at + 1 : at + 3]]
    if words[:1] in (["run"], ["create"]):
        return at + 2
    return at + 3 if words in (["container", "run"], ["container", "create"]) else None


def read_run(
    pieces: Sequence[Piece],
    begin: int,
    surrounding: Mapping[str, Variable],
    files: Mapping[str, str],
) -> Run:
    """Read options up to the image, and what follows it.

    `surrounding` are the variables of the shell, from which `-e NAME` takes its value; `files`
    those that `--env-file` may name.

    Raises:
        MalformedDocument: there is no image, or an option that none of the programs has.
    """
    reader = _Options(surrounding, files)
    at = begin
    while at < len(pieces):
        text = pieces[at].literal
        if text == "--":
            at += 1
            break
        if pieces[at].word.unresolved and _is_options(pieces, at):
            reader.findings.append(_open_options(pieces[at]))
            at += 1
            continue
        if not text.startswith("-") or text == "-":
            break
        at = reader.option(pieces, at)
    if at >= len(pieces):
        place = pieces[begin - 1].word.location
        raise _broken("docker-no-image", "no image is named, so nothing would start", place)
    image = pieces[at].word
    return Run(
        image=Image(image.text, image.location, image.unresolved),
        image_at=image.location,
        entrypoint=reader.entrypoint,
        arguments=pieces[at + 1 :],
        environment=reader.environment,
        findings=reader.findings,
        gpus=reader.gpus,
    )


def _is_options(pieces: Sequence[Piece], at: int) -> bool:
    """Whether a word that is not known holds options, because an image comes later."""
    if not pieces[at].text.startswith("$"):
        return False
    later = (piece.text for piece in pieces[at + 1 :])
    return any(Image(text).official or (":" in text and "vllm" in text) for text in later)


class _Options:
    def __init__(self, surrounding: Mapping[str, Variable], files: Mapping[str, str]) -> None:
        self._surrounding = surrounding
        self._files = files
        self.environment: dict[str, Variable] = {}
        self._options: set[str] = set()  # variables of `-e`, which win over those of files
        self.entrypoint: tuple[Piece, ...] | None = None
        self.findings: list[Finding] = []
        self.gpus: int | None = None

    def option(self, pieces: Sequence[Piece], at: int) -> int:
        """Take one option; give where the next word is."""
        text = pieces[at].literal
        name, equals, _ = text.partition("=")
        if text.startswith("--"):
            if name in SWITCHES:
                return at + 1
            if name not in WITH_VALUE:
                detail = f"docker, podman and nerdctl have no option {name} for `run`"
                raise _broken("docker-unknown-option", detail, pieces[at].word.location)
            if equals:
                self._value(name, _tail(pieces[at], len(name) + 1))
                return at + 1
        else:
            letters = text[1:]
            for number, letter in enumerate(letters):
                if letter in SHORT_WITH_VALUE:
                    rest = letters[number + 1 :]
                    name = f"-{letter}"
                    if rest:
                        cut = number + 2 + rest.startswith("=")
                        self._value(name, _tail(pieces[at], cut))
                        return at + 1
                    break
                if letter == "=" and number:
                    return at + 1  # a switch with its value: -t=false
                if letter not in SHORT_SWITCHES:
                    detail = f"docker, podman and nerdctl have no option -{letter} for `run`"
                    raise _broken("docker-unknown-option", detail, pieces[at].word.location)
            else:
                return at + 1
        if at + 1 >= len(pieces):
            raise _broken("docker-no-value", f"{text} needs a value", pieces[at].word.location)
        self._value(name, pieces[at + 1])
        return at + 2

    def _value(self, name: str, piece: Piece) -> None:
        if name in {"-e", "--env"}:
            for variable in self._variable(piece):
                self._options.add(variable.name)
                self.environment[variable.name] = variable
        elif name == "--env-file":
            for variable in self._file(piece):
                if variable.name not in self._options:
                    self.environment[variable.name] = variable
        elif name == "--entrypoint":
            self.entrypoint = (piece,) if piece.text else ()
        elif name == "--gpus":
            self.gpus = _count(piece.literal)

    def _variable(self, piece: Piece) -> Iterator[Variable]:
        variable = variable_of(piece)
        if variable is not None:
            yield variable
            return
        name = piece.literal
        if not name or "=" in name:
            return
        location = replace(piece.word.location, argv_index=None, variable=name)
        known = self._surrounding.get(name)
        if known is not None:
            yield Variable(name, known.value, location, known.unresolved)
        else:
            yield Variable(name, f"${name}", location, (name,))

    def _file(self, piece: Piece) -> Iterator[Variable]:
        text = self._files.get(piece.literal)
        if text is None:
            self.findings.append(unseen_env_file(piece.text, piece.word.location))
            return
        yield from read_env_file(text, piece.literal, self._surrounding)


def _tail(piece: Piece, cut: int) -> Piece:
    """Give the value that stands in the same word as its option."""
    nested = piece.nested()
    location = nested.location(cut, len(nested.text))
    return replace(piece, word=replace(piece.word, text=piece.word.text[cut:], location=location))


def _count(value: str) -> int | None:
    """Give the number of devices that `--gpus` asks for; None for `all` and what is not known."""
    if value.isdecimal() and len(value) < 6:
        return int(value)
    devices = _DEVICES.fullmatch(value)
    return len(devices.group(1).split(",")) if devices and devices.group(1) else None


def _open_options(piece: Piece) -> Finding:
    return Finding(
        rule="shell-unresolved-words",
        severity=Severity.WARNING,
        message=f"{piece.text} may hold options of `run`, such as variables; write them out",
        location=piece.word.location,
        undecided=True,
    )


def _broken(code: str, detail: str, place: Location) -> MalformedDocument:
    problem = Problem(code, detail, line=place.line, column=place.column)
    return MalformedDocument("the `run` command cannot be read", (problem,))
