"""A file of any form: what it is, by its content."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from app.documents import decode_json
from app.errors import InvalidEnvelope, MalformedDocument, Problem
from app.kubernetes.read import is_manifest, looks_like_manifests, read_kubernetes
from app.proposal.compose import read_compose
from app.proposal.config_yaml import parse_config_yaml, read_config
from app.proposal.docker import ENGINES
from app.proposal.envelope import Along, Envelope, read_envelope
from app.proposal.launch import SHELLS, WRAPPERS
from app.proposal.proposal import Entrypoint, Proposal
from app.proposal.python_source import looks_like_python, parse_python
from app.proposal.shell import parse_command

_YAML_START: Final = re.compile(r"""(?:---|["']?[\w.-]+["']?[ \t]*:(?:\s|$)|%YAML)""")
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_API_SERVER: Final = ["-m", "vllm.entrypoints.openai.api_server"]
_TOML: Final = re.compile(r"\[\[?[A-Za-z_][\w.-]*\]\]?[ \t]*(#.*)?")
# Programs that start a server by words that are not its own.
_NO_ARGUMENTS: Final = WRAPPERS | SHELLS | ENGINES
_COMPOSE: Final = re.compile(r"^services[ \t]*:[ \t]*(\{.*|#.*)?$", re.MULTILINE)
# Keys at the left margin of a task of SkyPilot, of which none is an option of vLLM's.
_TASK: Final = re.compile(r"^(run|resources|setup|envs|num_nodes|file_mounts)[ \t]*:", re.MULTILINE)


def read_text(text: str, *, source: str, along: Along | None = None) -> Envelope:
    """Read a proposal from text whose form is not told.

    Text that begins with `{` is a JSON envelope (or YAML in flow style), text in `[` and `]` a JSON
    list of words, text that begins with `key:` Kubernetes manifests if it has `kind`, a compose
    file if it has `services`, else a vLLM `--config` file; text that imports something and calls
    `LLM(…)` or the like is Python; all else is shell text. `source` names the text in locations;
    `along` is what is known beside it.

    Raises:
        MalformedDocument, InvalidEnvelope: it cannot be read as what it looks like.
        InvalidEnvelope: it is a TOML document, or has no vLLM server.
    """
    along = along or Along()
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        return _read_braces(text, source, along)
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    first = next(lines, "")
    if _TOML.fullmatch(first):
        raise _not_read("a TOML file", "the `vllm serve` command that is made of it")
    if _YAML_START.match(first):
        return read_yaml(text, source=source, along=along)
    if looks_like_python(text):
        return Envelope(proposal=parse_python(text, source=source)).along(along)
    return read_shell_text(text, source=source, along=along)


def read_example(text: str) -> Proposal:
    """Read an example of a rule: shell text, or manifests, of which the first server counts."""
    if looks_like_manifests(text):
        return read_kubernetes(text, source="example")[0]
    return parse_command(text)


def read_shell_text(text: str, *, source: str = "command", along: Along | None = None) -> Envelope:
    """Read shell text, or a JSON list of words, with what is known beside it.

    Raises:
        MalformedDocument: as `app.proposal.shell.parse_command`, or it is a list and no JSON.
        InvalidEnvelope: it is a list and not of words that start vLLM.
    """
    along = along or Along()
    if text.lstrip("\ufeff \t\r\n").startswith("[") and text.rstrip().endswith("]"):
        return read_json(decode_json(text, what=source)).along(along)
    proposal = parse_command(text, source=source, given=along.environment, files=along.files)
    return Envelope(proposal=proposal).along(along)


def read_yaml(text: str, *, source: str, along: Along | None = None) -> Envelope:
    """Read Kubernetes manifests, a compose file or a vLLM `--config` file.

    Raises:
        MalformedDocument: it is not YAML.
        InvalidEnvelope: manifests or a compose file without vLLM.
    """
    along = along or Along()
    if looks_like_manifests(text):
        return _kubernetes(text, source, along)
    if _COMPOSE.search(text):
        return _compose(text, source, along)
    keys = set(_TASK.findall(text))
    if "run" in keys and len(keys) > 1:
        raise _not_read("a task of SkyPilot", "the script of its `run`")
    return Envelope(proposal=parse_config_yaml(text, source=source)).along(along)


def _compose(text: str, source: str, along: Along) -> Envelope:
    services = read_compose(text, source=source, files=along.files)
    return Envelope(proposal=services[0], more=services[1:]).along(along)


def _kubernetes(text: str, source: str, along: Along) -> Envelope:
    servers = read_kubernetes(text, source=source)
    return Envelope(proposal=servers[0], more=servers[1:]).along(along)


def _read_braces(text: str, source: str, along: Along) -> Envelope:
    try:
        data = decode_json(text, what=source)
    except MalformedDocument:
        try:
            document = read_config(text, source)
        except MalformedDocument:
            document = None
        if document is not None and document.kind == "mapping":
            return read_yaml(text, source=source, along=along)
        raise
    if isinstance(data, dict) and is_manifest(data):
        return _kubernetes(text, source, along)
    if isinstance(data, dict) and "services" in data:
        return _compose(text, source, along)
    return read_envelope(data).along(along)


def read_json(data: object) -> Envelope:
    """Read an envelope, an object of Kubernetes, or the words of a command.

    Raises:
        InvalidEnvelope: it is none; every mistake in it is told.
    """
    if isinstance(data, dict) and is_manifest(data):
        return _kubernetes(json.dumps(data), "kubernetes", Along())
    return _read_argv(data) if isinstance(data, list) else read_envelope(data)


def _read_argv(words: list[object]) -> Envelope:
    begin = [str(word).rpartition("/")[2] for word in words[:3]]
    skipped, entrypoint = 0, Entrypoint.SERVE
    if begin[:2] == ["vllm", "serve"]:
        skipped = 2
    elif begin and _PYTHON.fullmatch(begin[0]) and begin[1:] == _API_SERVER:
        skipped, entrypoint = 3, Entrypoint.API_SERVER
    elif not begin or _PYTHON.fullmatch(begin[0]) or begin[0] in _NO_ARGUMENTS:
        raise _not_read("a list of words without `vllm serve`", "the command")
    envelope = read_envelope({"args": words[skipped:]})
    numbered = tuple(
        replace(word, location=replace(word.location, pointer=f"/{i}"))
        for i, word in enumerate(envelope.proposal.words, start=skipped)
    )
    proposal = replace(envelope.proposal, words=numbered, entrypoint=entrypoint)
    return replace(envelope, proposal=proposal)


def _not_read(what: str, instead: str) -> InvalidEnvelope:
    detail = f"this is {what}, which is not read here; give {instead} as shell text"
    return InvalidEnvelope("this form is not read", (Problem("form-not-read", detail, line=1),))
