"""What the gate knows of a server that a command starts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.request_rules.served import Served, served_by
from app.serve_config.resolve import resolve

_LIBRARY = CatalogueLibrary()


def served_by_command(
    command: str,
    version: str = "0.32.0",
    model: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
) -> Served:
    """Resolve `vllm serve …`; `model` is its config.json, `generation` generation_config.json."""
    return _served(command, version, json.dumps(model), json.dumps(generation))


@cache
def _served(command: str, version: str, model: str, generation: str) -> Served:
    resolution = resolve(parse_command(command), _LIBRARY.get(version))
    assert resolution.config is not None, resolution.findings
    config = replace(resolution.config, model_config=json.loads(model), memo={})
    return served_by(config, json.loads(generation))
