"""The command line: `vllm-admission validate | upgrade | replay | probe | serve | simulate | demo`.

Exit codes: 0 accepted or consistent, 1 rejected or inconsistent, 2 unusable input or usage,
3 undetermined or unproven. A batch exits with the worst of its lines, in the order 2, 1, 3, 0.
"""

from __future__ import annotations

import json
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
from app.cli_input import (
    DraftConfigOption,
    EnvOption,
    FileArgument,
    FilesOption,
    HardwareOption,
    ModelConfigOption,
    given_along,
    quoted,
    read_proposal,
)
from app.documents import decode_json, decode_text, encode_json
from app.errors import AdmissionError
from app.inputs import UNUSABLE, answer_lines
from app.model_facts import configs_of, with_model_configs
from app.probe.command import probe_command
from app.proposal.envelope import read_envelope
from app.proposal.suppression import Profile
from app.rules.policy import Policy
from app.settings import read_settings
from app.upgrade.command import upgrade_command
from app.validation import answer, judge, overall, policy_of
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


class Format(StrEnum):
    """Output formats of `validate`."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    SARIF = "sarif"
    JUNIT = "junit"
    GITHUB = "github"


class SettingsListed(StrEnum):
    """Which settings a verdict lists."""

    GIVEN = "given"
    ALL = "all"


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
    file: FileArgument = None,
    vllm_version: Annotated[
        list[str] | None, typer.Option("--vllm-version", metavar="V", help="May be repeated.")
    ] = None,
    env: EnvOption = None,
    files: FilesOption = None,
    model_config: ModelConfigOption = None,
    draft_model_config: DraftConfigOption = None,
    hardware: HardwareOption = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", help="JSON lines, an envelope each; - is standard input."),
    ] = None,
    settings_listed: Annotated[
        SettingsListed,
        typer.Option("--settings", help="Which settings the JSON formats list."),
    ] = SettingsListed.GIVEN,
    profile: Annotated[
        Profile | None,
        typer.Option(help="strict: a warning rejects too. Default: VLLM_ADMISSION_PROFILE."),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Say whether `vllm serve` would accept a proposed configuration."""
    words: list[str] | None = context.obj
    if [file, batch, words].count(None) != 2:
        raise typer.BadParameter("give exactly one of FILE, --batch FILE or `-- vllm serve …`")
    settings = read_settings()
    library = CatalogueLibrary(settings.catalogue_dir)
    policy = policy_of(settings)
    if profile is not None:
        policy = with_fields(policy, profile=profile)
    if batch is not None:
        if vllm_version or env or files or model_config or draft_model_config or hardware:
            raise typer.BadParameter("in a batch each line says its version, env and facts")
        _validate_batch(batch, library, settings.vllm_version, policy, output)
    envelope = read_proposal(
        file, words, given_along(env, files, model_config, hardware, draft_model_config)
    )
    if vllm_version:
        if envelope.vllm_versions:
            raise typer.BadParameter("--vllm-version is given, and the envelope names a version")
        envelope = with_fields(envelope, vllm_versions=tuple(vllm_version))
    # On the command line a model that is a directory here is read: it is the user's own.
    configs = configs_of(settings, anywhere=True)
    envelope = with_model_configs(envelope, library, settings.vllm_version, configs)
    every = settings_listed is SettingsListed.ALL
    verdicts = judge(envelope, library, settings.vllm_version, every_setting=every, policy=policy)
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
    limit = read_settings().max_replay_line_bytes
    raise typer.Exit(replays.replay_lines(batch or file or "-", limit, rows))


cli.command(name="probe")(probe_command)
cli.command(
    name="upgrade",
    epilog="Directly: vllm-admission upgrade --from V -- vllm serve MODEL ...",
)(upgrade_command)


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
    run_service(read_settings().model_copy(update=update), host, port)


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
    run_simulator(vllm_version, None if words is None else quoted(words), host, port)


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


def _validate_batch(
    name: str,
    library: CatalogueLibrary,
    default_version: str | None,
    policy: Policy,
    output: Format,
) -> NoReturn:
    if output not in {Format.JSONL, Format.TEXT}:
        raise typer.BadParameter("a batch is written with --format jsonl")

    def handle(line: batches.Line) -> batches.Answer:
        document = decode_json(decode_text(line.data, what="line"), what="line")
        verdicts = judge(read_envelope(document), library, default_version, policy=policy)
        return batches.Answer(encode_json(answer(verdicts)) + b"\n", EXIT[overall(verdicts)])

    raise typer.Exit(answer_lines(name, read_settings().max_body_bytes, handle))
