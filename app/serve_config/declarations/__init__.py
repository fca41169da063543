"""The rules of reading a proposal, declared once, by what they are about."""

from __future__ import annotations

from typing import Final

from app.serve_config.declarations import (
    command_line,
    config_file,
    environment,
    fields,
    kubernetes,
    launch,
    serve_args,
)

DECLARATIONS: Final = (
    *command_line.DECLARATIONS,
    *fields.DECLARATIONS,
    *config_file.DECLARATIONS,
    *environment.DECLARATIONS,
    *kubernetes.DECLARATIONS,
    *launch.DECLARATIONS,
    *serve_args.DECLARATIONS,
)
