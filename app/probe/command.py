"""`vllm-admission probe`: the end-to-end check from the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from app.admitted import admit
from app.catalogue import CatalogueLibrary
from app.errors import UnusableInput
from app.probe.plan import ProbeOptions
from app.probe.report import ProbeReport, render_text
from app.probe.run import probe
from app.relay.inline.facts import replay_facts
from app.relay.upstream import Backend
from app.replay.evidence import ReplayOptions
from app.replay.report import ReplayVerdict
from app.request_rules.served import served_by
from app.settings import Settings, read_settings

EXIT: Final = {
    ReplayVerdict.CONSISTENT: 0,
    ReplayVerdict.INCONSISTENT: 1,
    ReplayVerdict.UNPROVEN: 3,
}
_DEFAULT: Final = ProbeOptions()


class ProbeFormat(StrEnum):
    """Output formats of `probe`."""

    TEXT = "text"
    JSON = "json"


def probe_command(
    backend: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Of a vLLM server; default VLLM_ADMISSION_BACKEND_URL."),
    ] = None,
    vllm_version: Annotated[
        str | None, typer.Option(metavar="V", help="Whose draw to repeat; default: the server's.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many.")] = _DEFAULT.requests,
    max_tokens: Annotated[int, typer.Option(min=1, help="A sequence.")] = _DEFAULT.max_tokens,
    concurrency: Annotated[int, typer.Option(min=1, help="At a time.")] = _DEFAULT.concurrency,
    seed: Annotated[int, typer.Option(min=0, help="Of the plan.")] = _DEFAULT.seed,
    prompt_length: Annotated[
        list[int] | None, typer.Option(min=1, help="In tokens; may be repeated.")
    ] = None,
    token_ids: Annotated[
        str, typer.Option(metavar="LOW:HIGH", help="Ids in prompts.")
    ] = "{}:{}".format(*_DEFAULT.token_ids),
    max_logprobs: Annotated[
        int, typer.Option(min=1, help="The server's --max-logprobs; bounds top_k.")
    ] = _DEFAULT.max_logprobs,
    streaming: Annotated[bool, typer.Option(help="Whether to send streams too.")] = True,
    model: Annotated[str | None, typer.Option(help="To name in the requests.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="VLLM_API_KEY", help="Of the server.")
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(min=1, help="After which nothing more is sent or awaited.")
    ] = _DEFAULT.max_seconds,
    output: Annotated[ProbeFormat, typer.Option("--format")] = ProbeFormat.TEXT,
) -> None:
    """Send seeded generations to a vLLM server and replay what returns.

    What VLLM_ADMISSION_SERVE_CONFIG says of the server (fp64 draws, speculation, a watermark)
    is taken into account.
    """
    settings = read_settings()
    url = backend or settings.backend_url
    if url is None:
        raise typer.BadParameter("give --backend URL, or VLLM_ADMISSION_BACKEND_URL")
    options = ProbeOptions(
        requests=requests,
        max_tokens=max_tokens,
        concurrency=concurrency,
        seed=seed,
        prompt_lengths=tuple(prompt_length or _DEFAULT.prompt_lengths),
        token_ids=_range(token_ids),
        max_logprobs=max_logprobs,
        streaming=streaming,
        max_seconds=max_seconds,
    )
    report = asyncio.run(_probe(url, settings, options, vllm_version, model, api_key))
    if output is ProbeFormat.JSON:
        sys.stdout.write(json.dumps(report.as_json(), indent=2) + "\n")
    else:
        sys.stdout.write(render_text(report))
    raise typer.Exit(EXIT[report.verdict])


async def _probe(
    url: str,
    settings: Settings,
    options: ProbeOptions,
    vllm_version: str | None,
    model: str | None,
    api_key: str | None,
) -> ProbeReport:
    try:
        backend = Backend(
            url, connect_timeout=settings.connect_timeout, idle_timeout=settings.idle_timeout
        )
    except ValueError as error:
        raise UnusableInput(f"--backend {url}: {error}") from None
    try:
        return await probe(
            backend,
            options,
            vllm_version=vllm_version,
            replay_options=_told(settings),
            model=model,
            authorization=None if api_key is None else f"Bearer {api_key}",
        )
    finally:
        await backend.aclose()


def _told(settings: Settings) -> ReplayOptions:
    """What the configured proposal says of the server."""
    admitted = admit(settings, CatalogueLibrary(settings.catalogue_dir))
    if admitted.reason is not None:
        raise UnusableInput(admitted.reason)
    if admitted.config is None:
        return ReplayOptions()
    return replay_facts(admitted.config, served_by(admitted.config)).options


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not (low.isdigit() and high.isdigit() and int(low) <= int(high) < 2**31):
        raise typer.BadParameter(f"--token-ids takes LOW:HIGH, such as 32:999, not {text!r}")
    return int(low), int(high)
