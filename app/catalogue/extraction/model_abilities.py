"""What each registered model class says it can do.

Source: `model_executor/models/registry.py::_ModelInfo.from_model_cls` and the predicates of
`interfaces.py`. Importing several hundred model files can end the process that does it, so
children do it, each going on where the one before stopped.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from app.catalogue.extraction.installed import Vllm, describe

# Predicates of `interfaces.py` that are asked when the class is loaded, not by the registry.
_PREDICATES = ("supports_lora", "supports_eagle3", "supports_mrope", "supports_multimodal_pruning")
_SECONDS_WITHOUT_NEWS = 300.0

Inspection = dict[str, bool]
Inspect = Callable[[str], Inspection]


def model_ability_facts(vllm: Vllm) -> dict[str, list[str]]:
    """Give the architectures by ability, and under `not_inspected` those that did not load.

    Why one did not load is noted.
    """
    registry = vllm.module("vllm.model_executor.models.registry")
    interfaces = vllm.module("vllm.model_executor.models.interfaces")
    models = registry.ModelRegistry.models

    def inspect(architecture: str) -> Inspection:
        cls = models[architecture].load_model_cls()
        info = vars(registry._ModelInfo.from_model_cls(cls))
        found = {ability: value for ability, value in info.items() if isinstance(value, bool)}
        for name in _PREDICATES:
            if hasattr(interfaces, name):
                found[name] = bool(getattr(interfaces, name)(cls))
        return found

    return collect(sorted(models), inspect, vllm.note)


def collect(
    architectures: list[str], inspect: Inspect, note: Callable[[str], None]
) -> dict[str, list[str]]:
    """Inspect each architecture and turn the answers around: ability to architectures."""
    abilities: dict[str, list[str]] = {"not_inspected": []}
    for architecture, answer in answers(architectures, inspect):
        if isinstance(answer, str):
            abilities["not_inspected"].append(architecture)
            note(f"model class {architecture}: {answer}")
            continue
        for ability, has in answer.items():
            holders = abilities.setdefault(ability, [])
            if has:
                holders.append(architecture)
    return dict(sorted(abilities.items()))


def answers(
    architectures: Iterable[str], inspect: Inspect
) -> Iterator[tuple[str, Inspection | str]]:
    """Give each architecture's inspection, or why there is none, from child processes."""
    pending = list(architectures)
    while pending:
        done = 0
        for answer in _from_child(pending, inspect):
            yield pending[done], answer
            done += 1
        if done < len(pending):
            yield pending[done], "importing it ended the process"
            done += 1
        pending = pending[done:]


def _from_child(architectures: list[str], inspect: Inspect) -> Iterator[Inspection | str]:
    """Give the answers of one child, in order, until it has all or dies."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _inspect_all(architectures, inspect, writing)
    os.close(writing)
    try:
        for line in _lines(reading):
            yield json.loads(line)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _inspect_all(architectures: list[str], inspect: Inspect, writing: int) -> NoReturn:
    """In the child: write one line an architecture, then end without any clean-up."""
    try:
        # Model files print; the parent's standard output may be the catalogue.
        os.dup2(2, 1)
        for architecture in architectures:
            answer: Inspection | str
            try:
                answer = inspect(architecture)
            except BaseException as error:  # an import may even call sys.exit
                answer = describe(error)
            os.write(writing, json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def _lines(reading: int) -> Iterator[bytes]:
    """Give complete lines; stop at the end or when nothing came for too long."""
    buffer = b""
    deadline = time.monotonic() + _SECONDS_WITHOUT_NEWS
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data: Any = os.read(reading, 1 << 16)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        yield from lines
        deadline = time.monotonic() + _SECONDS_WITHOUT_NEWS
