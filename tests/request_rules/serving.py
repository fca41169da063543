"""What the gate knows of a server that a command starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.request_rules.served import Served, served_by
from app.serve_config.resolve import resolve

_LIBRARY = CatalogueLibrary()


def served_by_command(
    command: str, version: str = "0.32.0", model: dict[str, Any] | None = None
) -> Served:
    """Resolve `vllm serve …`; `model` is its config.json."""
    resolution = resolve(parse_command(command), _LIBRARY.get(version))
    assert resolution.config is not None, resolution.findings
    return served_by(replace(resolution.config, model_config=model, memo={}))
