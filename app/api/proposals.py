"""Reading a proposal from a request: in JSON, as shell text, as YAML, or as curl sends it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from starlette.requests import Request

from app.api.body import read_body
from app.documents import decode_json, decode_text
from app.errors import InvalidEnvelope, Problem, UnsupportedMedia
from app.kubernetes.read import looks_like_manifests
from app.proposal.envelope import Envelope
from app.proposal.read import read_json, read_shell_text, read_text, read_yaml

_YAML_TYPES: Final = {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"}
# curl's default when given --data; its body is then whatever the user has at hand.
_UNTYPED: Final = {"", "application/x-www-form-urlencoded", "application/octet-stream"}

REQUEST_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/ProposalEnvelope"}},
        "text/plain": {
            "schema": {"type": "string"},
            "example": "vllm serve Qwen/Qwen3-8B \\\n  --return-sampling-mask\n",
        },
        "application/yaml": {
            "schema": {"type": "string"},
            "example": "model: Qwen/Qwen3-8B\nreturn-sampling-mask: true\n",
        },
    },
}


async def read_proposal(request: Request, most_bytes: int, parameters: Collection[str]) -> Envelope:
    """Read the body as what its Content-Type says; `parameters` are the query's known names.

    Raises:
        UnusableInput, PayloadTooLarge, UnsupportedMedia: it cannot be read.
    """
    _check_parameters(request, parameters)
    body = await read_body(request, most_bytes)
    return _read(decode_text(body), _media_type(request.headers.get("content-type", "")))


def _check_parameters(request: Request, parameters: Collection[str]) -> None:
    """Refuse parameters that there are not: a misspelt version would judge for another one."""
    unknown = sorted(set(request.query_params) - set(parameters))
    if unknown:
        known = f"this endpoint takes {' and '.join(parameters)}"
        problems = tuple(Problem("unknown-parameter", known, pointer=f"/{n}") for n in unknown)
        raise InvalidEnvelope(f"unknown query parameter {', '.join(unknown)}", problems)


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def _read(text: str, media_type: str) -> Envelope:
    if media_type == "application/json":
        return read_json(decode_json(text))
    if media_type == "text/plain":
        return read_shell_text(text)
    if media_type in _YAML_TYPES:
        source = "kubernetes" if looks_like_manifests(text) else "config_yaml"
        return read_yaml(text, source=source)
    if media_type in _UNTYPED:
        return read_text(text, source="body")
    raise UnsupportedMedia(
        f"Content-Type {media_type!r} is not read; send application/json (an envelope), "
        "text/plain (a shell command) or application/yaml (a vLLM --config file, a compose file or "
        "Kubernetes manifests)"
    )
