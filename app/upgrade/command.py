"""`vllm-admission upgrade`: what changes for a proposal between two versions."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from app.catalogue import CatalogueLibrary
from app.cli_input import (
    DraftConfigOption,
    EnvOption,
    FileArgument,
    FilesOption,
    HardwareOption,
    ModelConfigOption,
    given_along,
    read_proposal,
)
from app.settings import read_settings
from app.upgrade.check import answer, check_upgrade, overall
from app.upgrade.text import render_upgrades
from app.verdict.verdict import Outcome

_EXIT: Final = {Outcome.ACCEPTED: 0, Outcome.REJECTED: 1, Outcome.UNDETERMINED: 3}


class UpgradeFormat(StrEnum):
    """Output formats of `upgrade`."""

    TEXT = "text"
    JSON = "json"


def upgrade_command(
    context: typer.Context,
    file: FileArgument = None,
    old: Annotated[
        str | None,
        typer.Option("--from", metavar="V", help="The version in use; default: of the image."),
    ] = None,
    new: Annotated[
        str | None, typer.Option("--to", metavar="V", help="Default: the newest known.")
    ] = None,
    env: EnvOption = None,
    files: FilesOption = None,
    model_config: ModelConfigOption = None,
    draft_model_config: DraftConfigOption = None,
    hardware: HardwareOption = None,
    output: Annotated[
        UpgradeFormat, typer.Option("--format", help="Output format.")
    ] = UpgradeFormat.TEXT,
) -> None:
    """Say what changes for a configuration between two vLLM versions."""
    words: list[str] | None = context.obj
    if [file, words].count(None) != 1:
        raise typer.BadParameter("give exactly one of FILE or `-- vllm serve …`")
    library = CatalogueLibrary(read_settings().catalogue_dir)
    envelope = read_proposal(
        file, words, given_along(env, files, model_config, hardware, draft_model_config)
    )
    upgrades = check_upgrade(envelope, library, old, new)
    if output is UpgradeFormat.JSON:
        sys.stdout.write(json.dumps(answer(upgrades), indent=2) + "\n")
    else:
        sys.stdout.write(render_upgrades(upgrades))
    raise typer.Exit(_EXIT[overall(upgrades)])
