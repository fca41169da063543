"""POST /validate: whether vLLM would start with a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from app.api import schemas
from app.api.body import read_body
from app.api.problems import problem_responses
from app.api.state import gates_of
from app.documents import decode_json, decode_text, encode_json
from app.errors import InvalidEnvelope, Problem, UnsupportedMedia
from app.proposal.envelope import Envelope, read_envelope
from app.proposal.read import read_shell_text, read_text, read_yaml
from app.validation import answer, judge
from app.verdict.render.sarif import render_sarif
from app.verdict.render.text import render_text
from app.verdict.verdict import Verdict

router = APIRouter(tags=["configuration gate"])

_SARIF: Final = "application/sarif+json"
_YAML_TYPES: Final = {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"}
# curl's default when given --data; its body is then whatever the user has at hand.
_UNTYPED: Final = {"", "application/x-www-form-urlencoded", "application/octet-stream"}

_PARAMETERS: Final = ("vllm_version", "on_reject", "settings")

_REQUEST_BODY: Final = {
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


@router.post(
    "/validate",
    summary="Say whether `vllm serve` would accept a proposed configuration",
    openapi_extra={"requestBody": _REQUEST_BODY},
    response_model=schemas.VerdictModel | schemas.VerdictsModel,
    responses={
        200: {
            "description": "The verdict; for several versions or services one for each.",
            "content": {"text/plain": {"schema": {"type": "string"}}, _SARIF: {}},
        },
        **problem_responses(400, 413, 415, 422),
    },
)
async def validate_proposal(
    request: Request,
    vllm_version: Annotated[
        list[str] | None,
        Query(description="Version(s) to judge for, where the body names none."),
    ] = None,
    on_reject: Annotated[
        int, Query(ge=200, le=499, description="Status to answer with when not accepted.")
    ] = 200,
    settings: Annotated[
        Literal["given", "all"],
        Query(description="Which settings to list: those given, or all of the version."),
    ] = "given",
) -> Response:
    """Judge a proposal: a JSON envelope, a shell command, a compose file or a `--config` file."""
    gates = gates_of(request)
    _check_parameters(request)
    body = await read_body(request, gates.settings.max_body_bytes)
    envelope = _read(decode_text(body), _media_type(request.headers.get("content-type", "")))
    if vllm_version:
        if envelope.vllm_versions:
            problem = Problem("given-twice", "the version is given twice", pointer="/vllm_version")
            raise InvalidEnvelope("vllm_version is in the body and in the query", (problem,))
        envelope = replace(envelope, vllm_versions=tuple(vllm_version))
    with gates.metrics.duration.labels("configuration").time():
        verdicts = judge(
            envelope,
            gates.library,
            gates.settings.vllm_version,
            gates.metrics.crashed,
            every_setting=settings == "all",
        )
    gates.metrics.judged(verdicts)
    accepted = all(verdict.accepted for verdict in verdicts)
    return _render(verdicts, request.headers, 200 if accepted else on_reject)


def _check_parameters(request: Request) -> None:
    """Refuse parameters that there are not: a misspelt version would judge for another one."""
    unknown = sorted(set(request.query_params) - set(_PARAMETERS))
    if unknown:
        known = f"this endpoint takes {' and '.join(_PARAMETERS)}"
        problems = tuple(Problem("unknown-parameter", known, pointer=f"/{n}") for n in unknown)
        raise InvalidEnvelope(f"unknown query parameter {', '.join(unknown)}", problems)


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def _read(text: str, media_type: str) -> Envelope:
    if media_type == "application/json":
        return read_envelope(decode_json(text))
    if media_type == "text/plain":
        return read_shell_text(text)
    if media_type in _YAML_TYPES:
        return read_yaml(text, source="config_yaml")
    if media_type in _UNTYPED:
        return read_text(text, source="body")
    raise UnsupportedMedia(
        f"Content-Type {media_type!r} is not read; send application/json (an envelope), "
        "text/plain (a shell command) or application/yaml (a vLLM --config file)"
    )


def _render(verdicts: Sequence[Verdict], headers: Mapping[str, str], status: int) -> Response:
    wanted = headers.get("accept", "")
    if _SARIF in wanted:
        return Response(render_sarif(verdicts), status, media_type=_SARIF)
    if "text/plain" in wanted and "json" not in wanted:
        return PlainTextResponse(render_text(verdicts), status)
    return Response(encode_json(answer(verdicts)), status, media_type="application/json")
