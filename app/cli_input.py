"""What the commands that take a proposal read: the file or words, and the options beside it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.documents import decode_json, decode_text
from app.errors import UnusableInput
from app.inputs import open_input
from app.proposal.envelope import Along, Envelope
from app.proposal.proposal import Hardware, Variable
from app.proposal.read import read_shell_text, read_text
from app.verdict.location import Location

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")

FileArgument = Annotated[
    str | None, typer.Argument(help="A proposal in any form; - is standard input.")
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="K=V", help="May be repeated.")
]
FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="[NAME=]PATH",
        help="A file that the proposal names (--config, --env-file, .env); may be repeated.",
    ),
]
ModelConfigOption = Annotated[
    Path | None, typer.Option("--model-config", help="The model's config.json.")
]
DraftConfigOption = Annotated[
    Path | None,
    typer.Option("--draft-model-config", help="The speculative draft model's config.json."),
]
HardwareOption = Annotated[
    str | None, typer.Option("--hardware", metavar="GPU:COUNT", help="H100-80GB:8, or cpu.")
]


def read_proposal(file: str | None, words: list[str] | None, along: Along) -> Envelope:
    """Read a proposal from a file, standard input, or words that a shell has already split.

    Raises:
        UnusableInput: it cannot be read.
    """
    if words is not None:
        return read_shell_text(quoted(words), along=along)
    source = file or "-"
    with open_input(source) as stream:
        return read_text(decode_text(stream.read(), what=source), source=source, along=along)


def given_along(
    env: list[str] | None,
    files: list[str] | None,
    model_config: Path | None,
    hardware: str | None,
    draft_model_config: Path | None = None,
) -> Along:
    """Read what the options say about the proposal.

    Raises:
        UnusableInput: a file cannot be read.
    """
    variables = {}
    for entry in env or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"--env takes NAME=VALUE, not {entry!r}")
        variables[name] = Variable(name, value, Location(variable=name, source="--env"))
    texts = {}
    for entry in files or ():
        name, equals, path = entry.partition("=")
        texts[name] = _text(path if equals else name)
    along = Along(environment=variables, files=texts)
    if model_config is not None:
        along = replace(along, model_config=_config(model_config))
    if draft_model_config is not None:
        along = replace(along, draft_model_config=_config(draft_model_config))
    if hardware is not None:
        gpu, _, count = hardware.partition(":")
        if count and not count.isdigit():
            raise typer.BadParameter(f"--hardware takes GPU or GPU:COUNT, not {hardware!r}")
        along = replace(along, hardware=Hardware(gpu or None, int(count) if count else None))
    return along


def _config(path: Path) -> dict[str, Any]:
    what = str(path)
    facts = decode_json(_text(what), what=what)
    if not isinstance(facts, dict):
        raise UnusableInput(f"{what} is no config.json: it must hold a JSON object")
    return facts


def _text(path: str) -> str:
    with open_input(path) as stream:
        return decode_text(stream.read(), what=path)


def quoted(words: list[str]) -> str:
    """Turn words that a shell has already split back into a command."""
    out: list[str] = []
    for word in words:
        name = _ASSIGNMENT.match(word)
        leading = name is not None and len(out) == sum("=" in q for q in out)
        cut = len(name.group()) if name is not None and leading else 0
        out.append(word[:cut] + (shlex.quote(word[cut:]) if word[cut:] or not cut else ""))
    return " ".join(out)
