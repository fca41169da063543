"""What a list of words starts: the server, a script that starts it, or a container of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.errors import MalformedDocument, Problem
from app.proposal.docker import ENGINES, Run, read_run, run_begins
from app.proposal.image import Image
from app.proposal.pieces import Piece, numbered, variable_of
from app.proposal.positions import LineIndex
from app.proposal.proposal import Entrypoint, Form, Hardware, Proposal, Variable
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

_API_SERVER: Final = "vllm.entrypoints.openai.api_server"
# Modules that take vLLM's engine arguments beside options of their own.
_WRAPPERS_OF_VLLM: Final = {"dynamo.vllm", "huggingfaceserver"}
_CLI_MODULES: Final = {"vllm", "vllm.entrypoints.cli.main"}
# Programs that run the command that follows, in this process's environment.
WRAPPERS: Final = frozenset(
    {"exec", "env", "nohup", "sudo", "time", "command", "numactl", "taskset", "nice", "ionice"}
    | {"stdbuf", "uv", "uvx", "poetry", "pipenv", "conda", "pixi", "setsid", "chrt", "timeout"}
    | {"nsys", "ncu", "tini", "dumb-init", "gosu", "catchsegv", "srun", "accelerate", "mamba"}
    | {"micromamba", "pdm", "hatch", "rye", "xvfb-run", "unbuffer", "ddtrace-run", "doas"}
    | {"opentelemetry-instrument", "memray", "py-spy", "strace", "caffeinate", "systemd-run"}
)
SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "ash"})
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_BASH_LINE: Final = re.compile(r"#!.*\bbash\b")
# How a script begins that a shell runs: with a line that names one, or with none at all.
_SHELL_LINE: Final = re.compile(r"(?!#!)|#!.*\b(?:ba|z|da|a)?sh\b")
_SHELL_OPTIONS_WITH_VALUE: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the words are part of.

    `read_script` reads the text that `sh -c` is given as the shell of that name does; the shell
    around it has left open in it what the names stand for. `files` are those given along,
    `scripts` those that a shell may run, by path.
    """

    form: Form
    text: LineIndex
    read_script: Callable[[LineIndex, Mapping[str, Variable], Sequence[str], str], Proposal]
    files: Mapping[str, str]
    scripts: Mapping[str, LineIndex] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Container:
    """A container to start: as `docker run`, a compose service and a pod say it.

    `entrypoint` is None where the image's own is kept. `at` spans what stands before the first
    argument.
    """

    image: Image | None
    entrypoint: Sequence[Piece] | None
    arguments: Sequence[Piece]
    environment: Mapping[str, Variable]
    at: Location
    gpus: int | None = None


def launched(
    pieces: Sequence[Piece], environment: Mapping[str, Variable], around: Surroundings
) -> Proposal | None:
    """Give the server that a command starts; None if it starts none that is known.

    Raises:
        MalformedDocument: a script or a `docker run` in it cannot be read.
    """
    for at, piece in enumerate(pieces):
        script = around.scripts.get(piece.literal)
        if script is not None and _SHELL_LINE.match(script.text):
            shell = "bash" if _BASH_LINE.match(script.text) else "sh"
            return around.read_script(script, _through_env(pieces[:at], environment), (), shell)
        program = piece.literal.rpartition("/")[2]
        if program == "vllm" and [p.literal for p in pieces[at + 1 : at + 2]] == ["serve"]:
            return _server(Entrypoint.SERVE, pieces, at + 2, environment, around)
        if _PYTHON.fullmatch(program):
            return _module(pieces, at, environment, around)
        if program in SHELLS:
            return _script(pieces, at, environment, around)
        if program in ENGINES and (begin := run_begins(pieces, at)) is not None:
            run = read_run(pieces, begin, environment, around.files)
            return _run(run, pieces, around)
        if at == 0 and program not in WRAPPERS:
            return None
    return None


def contained(container: Container, around: Surroundings) -> Proposal | None:
    """Give the server that a container starts; None if it starts none that is known."""
    image, entrypoint = container.image, container.entrypoint
    findings: tuple[Finding, ...] = ()
    proposal = None
    if entrypoint is not None or image is None or image.official is None:
        argv = [*(entrypoint or ()), *container.arguments]
        proposal = launched(argv, container.environment, around) if argv else None
    if proposal is None and entrypoint is None and image is not None and image.serves_vllm:
        if image.official is None and _is_program(container.arguments):
            return None  # the entry point runs the command that it is given, and it is none of ours
        proposal = _entry_point(container, around)
        if image.official is None:
            findings = (_assumed(image),)
    if proposal is None:
        return None
    hardware = Hardware(
        gpu="cpu" if image is not None and image.official == "cpu" else None, count=container.gpus
    )
    return replace(
        proposal,
        image=image,
        hardware=hardware if hardware != Hardware() else proposal.hardware,
        findings=(*proposal.findings, *findings),
    )


def _is_program(arguments: Sequence[Piece]) -> bool:
    """Whether the first word is a program rather than a model or an option."""
    first = arguments[0].literal.rpartition("/")[2] if arguments else ""
    return first in SHELLS | WRAPPERS or _PYTHON.fullmatch(first) is not None


def _entry_point(container: Container, around: Surroundings) -> Proposal:
    """The image's own entry point, `vllm serve`, with the arguments given."""
    arguments = container.arguments
    findings: tuple[Finding, ...] = ()
    begins = [piece.literal.rpartition("/")[2] for piece in arguments[:2]]
    if begins[:1] == ["serve"] or begins == ["vllm", "serve"]:
        findings = (_repeated(arguments, 1 if begins[0] == "serve" else 2),)
    return Proposal(
        form=around.form,
        words=numbered(arguments),
        environment=container.environment,
        source=around.text.text,
        command=container.at,
        text=around.text,
        findings=findings,
    )


def _run(run: Run, pieces: Sequence[Piece], around: Surroundings) -> Proposal | None:
    container = Container(
        image=run.image,
        entrypoint=run.entrypoint,
        arguments=run.arguments,
        environment=run.environment,
        at=_spanned(pieces[0].word.location, run.image_at, around.text),
        gpus=run.gpus,
    )
    proposal = contained(container, around)
    if proposal is None:
        detail = (
            f"the image {run.image.text} is not one of vLLM's, so what it starts is not known; "
            "give the `vllm serve` command that it runs"
        )
        raise _broken("image-not-read", detail, run.image_at)
    return replace(
        proposal,
        findings=(*run.findings, *proposal.findings),
        option_at=run.image_at if proposal.text is around.text else None,
    )


def _server(
    entrypoint: Entrypoint,
    pieces: Sequence[Piece],
    first: int,
    environment: Mapping[str, Variable],
    around: Surroundings,
) -> Proposal:
    head = _spanned(pieces[0].word.location, pieces[first - 1].word.location, around.text)
    return Proposal(
        form=around.form,
        entrypoint=entrypoint,
        words=numbered(pieces[first:]),
        environment=_through_env(pieces[: first - 1], environment),
        source=around.text.text,
        command=head,
        text=around.text,
    )


def _module(
    pieces: Sequence[Piece], at: int, environment: Mapping[str, Variable], around: Surroundings
) -> Proposal | None:
    words = [piece.literal for piece in pieces]
    module = next((i for i in range(at + 1, len(words)) if words[i] == "-m"), None)
    if module is None or module + 1 >= len(words):
        return None
    name = words[module + 1]
    if name == _API_SERVER:
        return _server(Entrypoint.API_SERVER, pieces, module + 2, environment, around)
    if name in _WRAPPERS_OF_VLLM:
        server = _server(Entrypoint.API_SERVER, pieces, module + 2, environment, around)
        return replace(server, program=name)
    if name in _CLI_MODULES and words[module + 2 : module + 3] == ["serve"]:
        return _server(Entrypoint.SERVE, pieces, module + 3, environment, around)
    return None


def _script(
    pieces: Sequence[Piece], at: int, environment: Mapping[str, Variable], around: Surroundings
) -> Proposal | None:
    """Read what `sh -c` is given as shell text of its own."""
    shell = pieces[at].literal.rpartition("/")[2]
    i = at + 1
    given = False
    while i < len(pieces):
        text = pieces[i].literal
        if text in _SHELL_OPTIONS_WITH_VALUE:
            i += 2
        elif text[:1] in {"-", "+"} and len(text) > 1:
            given = given or (text[0] == "-" and text[1] != "-" and "c" in text)
            i += 1
        else:
            break
    if i >= len(pieces):
        return None
    if not given:
        held = around.scripts.get(pieces[i].literal)
        if held is None:
            return None
        return around.read_script(held, _through_env(pieces[:at], environment), (), shell)
    script, rest = pieces[i], pieces[i + 1 :]
    environment = _through_env(pieces[:at], environment)
    if rest and not re.search(r"\s", script.text):
        meant = launched(pieces[i:], environment, around)
        if meant is not None:
            return replace(meant, findings=(_one_word(script), *meant.findings))
    return around.read_script(script.nested(), environment, script.word.unresolved, shell)


def _through_env(
    pieces: Sequence[Piece], environment: Mapping[str, Variable]
) -> dict[str, Variable]:
    """Apply the assignments and `-i`, `-u` of an `env` before the command."""
    variables = dict(environment)
    after_env = skip = False
    for piece in pieces:
        text = piece.literal
        if skip:
            variables.pop(text, None)
            skip = False
        elif after_env and text in {"-i", "--ignore-environment", "-"}:
            variables.clear()
        elif after_env and text in {"-u", "--unset"}:
            skip = True
        elif text == "env":
            after_env = True
        elif (variable := variable_of(piece)) is not None:
            variables[variable.name] = variable
    return variables


def _spanned(start: Location, end: Location, text: LineIndex) -> Location:
    """Give the place from the start of one word to the end of another."""
    first, last = text.span(start), text.span(end)
    if first is None or last is None:
        return end
    return text.location(first[0], last[1])


def _assumed(image: Image) -> Finding:
    return Finding(
        rule="image-entrypoint-assumed",
        severity=Severity.INFO,
        message=(
            f"{image.text} is not an image of the vLLM project; it was taken to run `vllm serve` "
            "with these arguments"
        ),
        location=image.location,
    )


def _repeated(arguments: Sequence[Piece], count: int) -> Finding:
    words = " ".join(piece.text for piece in arguments[:count])
    return Finding(
        rule="image-entrypoint-repeated",
        severity=Severity.WARNING,
        message=(
            f"the image runs `vllm serve` itself, so {words!r} become arguments of it; leave "
            "them out"
        ),
        location=arguments[0].word.location,
        related=tuple(piece.word.location for piece in arguments[1:count]),
    )


def _one_word(script: Piece) -> Finding:
    return Finding(
        rule="shell-one-word-script",
        severity=Severity.ERROR,
        message=(
            f"the shell runs only the word after `-c`, {script.text!r}, and gives it the others "
            "as $0, $1, …; put the whole command into one word"
        ),
        location=script.word.location,
    )


def _broken(code: str, detail: str, place: Location) -> MalformedDocument:
    problem = Problem(code, detail, line=place.line, column=place.column)
    return MalformedDocument("no vLLM server could be found in it", (problem,))
