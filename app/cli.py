"""The command line: `vllm-admission validate | replay | probe | serve | simulate | demo`.

Exit codes: 0 accepted or consistent, 1 rejected or inconsistent, 2 unusable input or usage,
3 undetermined or unproven. A batch exits with the worst of its lines, in the order 2, 1, 3, 0.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace as with_fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from app import batch as batches
from app import replay_command as replays
from app.catalogue import CatalogueLibrary
from app.documents import decode_json, decode_text, encode_json
from app.errors import AdmissionError, UnusableInput
from app.inputs import UNUSABLE, answer_lines, open_input
from app.probe.command import probe_command
from app.proposal.envelope import Envelope, read_envelope
from app.proposal.proposal import Hardware, Variable
from app.proposal.read import read_text
from app.proposal.shell import parse_command
from app.settings import Settings
from app.validation import answer, judge, overall
from app.verdict.location import Location
from app.verdict.render.github import render_github
from app.verdict.render.jsonl import render_jsonl
from app.verdict.render.junit import render_junit
from app.verdict.render.sarif import render_sarif
from app.verdict.render.text import render_text
from app.verdict.verdict import Outcome, Verdict

cli = typer.Typer(
    name="vllm-admission",
    help="Configuration, request and replay gates in front of vLLM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)

EXIT: Final[dict[str, int]] = {
    Outcome.ACCEPTED: 0,
    Outcome.REJECTED: 1,
    Outcome.UNDETERMINED: 3,
}
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")


class Format(StrEnum):
    """Output formats of `validate`."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    SARIF = "sarif"
    JUNIT = "junit"
    GITHUB = "github"


class ReportFormat(StrEnum):
    """Output formats of `replay`."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


_RENDERERS: Final[dict[Format, Callable[[Sequence[Verdict]], str]]] = {
    Format.TEXT: render_text,
    Format.JSON: lambda verdicts: json.dumps(answer(verdicts), indent=2) + "\n",
    Format.JSONL: render_jsonl,
    Format.SARIF: render_sarif,
    Format.JUNIT: render_junit,
    Format.GITHUB: render_github,
}


@cli.command(epilog="A command line, directly: vllm-admission validate -- vllm serve MODEL ...")
def validate(
    context: typer.Context,
    file: Annotated[
        str | None, typer.Argument(help="A proposal in any form; - is standard input.")
    ] = None,
    vllm_version: Annotated[
        list[str] | None, typer.Option("--vllm-version", metavar="V", help="May be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="May be repeated.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="The model's config.json.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="GPU:COUNT", help="H100-80GB:8, or cpu.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", help="JSON lines, an envelope each; - is standard input."),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Say whether `vllm serve` would accept a proposed configuration."""
    words: list[str] | None = context.obj
    if [file, batch, words].count(None) != 2:
        raise typer.BadParameter("give exactly one of FILE, --batch FILE or `-- vllm serve …`")
    settings = Settings()
    library = CatalogueLibrary(settings.catalogue_dir)
    if batch is not None:
        if vllm_version or env or model_config or hardware:
            raise typer.BadParameter("in a batch each line says its version, env and facts")
        _validate_batch(batch, library, settings.vllm_version, output)
    envelope = _extended(_read_proposal(file, words), env, model_config, hardware)
    if vllm_version:
        if envelope.vllm_versions:
            raise typer.BadParameter("--vllm-version is given, and the envelope names a version")
        envelope = with_fields(envelope, vllm_versions=tuple(vllm_version))
    verdicts = judge(envelope, library, settings.vllm_version)
    sys.stdout.write(_RENDERERS[output](verdicts))
    raise typer.Exit(EXIT[overall(verdicts)])


@cli.command()
def replay(
    file: Annotated[
        str | None,
        typer.Argument(
            help="{vllm_version, request, response}, or a Parquet or Arrow file of such rows; "
            "- is standard input."
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", help="JSON lines, a case each; - is standard input.")
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option("--rows", help="Write every replayed row: JSON lines, .parquet or .arrow."),
    ] = None,
    output: Annotated[
        ReportFormat, typer.Option("--format", help="Output format.")
    ] = ReportFormat.TEXT,
) -> None:
    """Say whether a response is what the engine drew, from its masks and logprobs."""
    if (file is None) == (batch is None):
        raise typer.BadParameter("give exactly one of FILE or --batch FILE")
    if file is not None and not replays.is_table(file):
        raise typer.Exit(replays.replay_file(file, output, rows))
    if output is ReportFormat.JSON:
        raise typer.BadParameter("a batch is written with --format jsonl")
    limit = Settings().max_replay_line_bytes
    raise typer.Exit(replays.replay_lines(batch or file or "-", limit, rows))


cli.command(name="probe")(probe_command)


@cli.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8080,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Processes; default VLLM_ADMISSION_WORKERS, or 1."),
    ] = None,
    tls_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="A second port, with TLS, for admission reviews."),
    ] = None,
) -> None:
    """Run the service; settings come from VLLM_ADMISSION_… environment variables."""
    from app.serving import run_service

    given = {"workers": workers, "tls_port": tls_port}
    update = {name: value for name, value in given.items() if value is not None}
    run_service(Settings().model_copy(update=update), host, port)


@cli.command()
def certificate(
    namespace: Annotated[str, typer.Option(help="Where the service and the secret are.")],
    service: Annotated[str, typer.Option(help="The Service that the API server calls.")],
    secret: Annotated[str, typer.Option(help="The Secret that the certificate is kept in.")],
    configuration: Annotated[
        list[str], typer.Option(help="Webhook configuration to tell; may be given again.")
    ],
) -> None:
    """Make or renew the webhook's certificate, from inside a cluster without cert-manager."""
    from app.certificates.cluster import Target, inside, keep
    from app.certificates.serving import now

    target = Target(namespace, service, secret, tuple(configuration))
    with inside() as cluster:
        for line in keep(cluster, target, now()) or ("nothing to do",):
            typer.echo(line)


@cli.command(epilog="With the backend's own options: vllm-admission simulate -- vllm serve toy ...")
def simulate(
    context: typer.Context,
    vllm_version: Annotated[
        str, typer.Option("--vllm-version", metavar="V", help="Whose behaviour to show.")
    ] = "0.32.0",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
) -> None:
    """Run the simulated vLLM backend: a toy model, that version's wire format and draw."""
    from app.serving import run_simulator

    words: list[str] | None = context.obj
    run_simulator(vllm_version, None if words is None else _quoted(words), host, port)


@cli.command()
def demo(
    vllm_version: Annotated[
        str, typer.Option("--vllm-version", metavar="V", help="Whose behaviour to show.")
    ] = "0.32.0",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8080,
) -> None:
    """Run the service in front of the simulated backend, in one process."""
    from app.serving import run_demo

    run_demo(vllm_version, host, port)


def main() -> None:
    """Run the command line; the console script."""
    head, words = _split(sys.argv[1:])
    try:
        cli(head, obj=words, prog_name="vllm-admission")
    except AdmissionError as error:
        sys.stderr.write(f"vllm-admission: {error}\n")
        sys.exit(UNUSABLE)


def _split(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Take what follows `--`: vllm serve's own words, which typer must not read."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _quoted(words: list[str]) -> str:
    """Turn words that a shell has already split back into a command."""
    quoted: list[str] = []
    for word in words:
        name = _ASSIGNMENT.match(word)
        leading = name is not None and len(quoted) == sum("=" in q for q in quoted)
        cut = len(name.group()) if name is not None and leading else 0
        quoted.append(word[:cut] + (shlex.quote(word[cut:]) if word[cut:] or not cut else ""))
    return " ".join(quoted)


def _read_proposal(file: str | None, words: list[str] | None) -> Envelope:
    if words is not None:
        return Envelope(proposal=parse_command(_quoted(words)))
    source = file or "-"
    with open_input(source) as stream:
        return read_text(decode_text(stream.read(), what=source), source=source)


def _extended(
    envelope: Envelope, env: list[str] | None, model_config: Path | None, hardware: str | None
) -> Envelope:
    """Add what the options say about the proposal."""
    proposal = envelope.proposal
    variables = dict(proposal.environment)
    for entry in env or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"--env takes NAME=VALUE, not {entry!r}")
        variables[name] = Variable(name, value, Location(variable=name, source="--env"))
    proposal = with_fields(proposal, environment=variables)
    if model_config is not None:
        what = str(model_config)
        with open_input(what) as stream:
            facts = decode_json(decode_text(stream.read(), what=what), what=what)
        if not isinstance(facts, dict):
            raise UnusableInput(f"{what} is no config.json: it must hold a JSON object")
        proposal = with_fields(proposal, model_config=facts)
    if hardware is not None:
        gpu, _, count = hardware.partition(":")
        if count and not count.isdigit():
            raise typer.BadParameter(f"--hardware takes GPU or GPU:COUNT, not {hardware!r}")
        proposal = with_fields(
            proposal, hardware=Hardware(gpu or None, int(count) if count else None)
        )
    return with_fields(envelope, proposal=proposal)


def _validate_batch(
    name: str, library: CatalogueLibrary, default_version: str | None, output: Format
) -> NoReturn:
    if output not in {Format.JSONL, Format.TEXT}:
        raise typer.BadParameter("a batch is written with --format jsonl")

    def handle(line: batches.Line) -> batches.Answer:
        document = decode_json(decode_text(line.data, what="line"), what="line")
        verdicts = judge(read_envelope(document), library, default_version)
        return batches.Answer(encode_json(answer(verdicts)) + b"\n", EXIT[overall(verdicts)])

    raise typer.Exit(answer_lines(name, Settings().max_body_bytes, handle))
