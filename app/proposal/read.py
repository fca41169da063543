"""A file of any form: what it is, by its content."""

from __future__ import annotations

import re
from typing import Final

from app.documents import decode_json
from app.errors import InvalidEnvelope, MalformedDocument, Problem
from app.proposal.config_yaml import parse_config_yaml, read_config
from app.proposal.envelope import Envelope, read_envelope
from app.proposal.shell import parse_command

_YAML_START: Final = re.compile(r"""(?:---|["']?[\w.-]+["']?[ \t]*:(?:\s|$)|%YAML)""")
_KUBERNETES: Final = re.compile(r"^(apiVersion|kind)[ \t]*:", re.MULTILINE)
_COMPOSE: Final = re.compile(r"^services[ \t]*:[ \t]*(#.*)?$", re.MULTILINE)


def read_text(text: str, *, source: str) -> Envelope:
    """Read a proposal from text whose form is not told.

    Text that begins with `{` is a JSON envelope (or YAML in flow style), text that begins with
    `key:` a vLLM `--config` file, all else shell text. `source` names the text in locations.

    Raises:
        MalformedDocument, InvalidEnvelope: it cannot be read as what it looks like.
        InvalidEnvelope: it is a Kubernetes or compose document.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        return _read_braces(text, source)
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    first = next(lines, "")
    if not _YAML_START.match(first):
        return Envelope(proposal=parse_command(text, source=source))
    return read_yaml(text, source=source)


def read_yaml(text: str, *, source: str) -> Envelope:
    """Read a vLLM `--config` file, which other YAML that starts servers is easily taken for.

    Raises:
        MalformedDocument: it is not YAML.
        InvalidEnvelope: it is a Kubernetes or compose document.
    """
    if len(set(_KUBERNETES.findall(text))) == 2:
        raise _not_read("a Kubernetes manifest", "the container's command and args")
    if _COMPOSE.search(text):
        raise _not_read("a compose file", "the service's command")
    return Envelope(proposal=parse_config_yaml(text, source=source))


def _read_braces(text: str, source: str) -> Envelope:
    try:
        data = decode_json(text, what=source)
    except MalformedDocument:
        try:
            document = read_config(text, source)
        except MalformedDocument:
            document = None
        if document is not None and document.kind == "mapping":
            return Envelope(proposal=parse_config_yaml(text, source=source))
        raise
    if isinstance(data, dict) and {"apiVersion", "kind"} <= data.keys():
        raise _not_read("a Kubernetes manifest", "the container's command and args")
    if isinstance(data, dict) and "services" in data:
        raise _not_read("a compose file", "the service's command")
    return read_envelope(data)


def _not_read(what: str, instead: str) -> InvalidEnvelope:
    detail = f"this is {what}, which is not read here; give {instead} as shell text"
    return InvalidEnvelope("this form is not read", (Problem("form-not-read", detail, line=1),))
