"""POST /validate: whether vLLM would start with a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from app.api import schemas
from app.api.problems import problem_responses
from app.api.proposals import REQUEST_BODY, read_proposal
from app.api.state import gates_of
from app.documents import encode_json
from app.errors import InvalidEnvelope, Problem
from app.model_facts import with_model_configs
from app.validation import answer, judge, policy_of
from app.verdict.render.sarif import render_sarif
from app.verdict.render.text import render_text
from app.verdict.verdict import Verdict

router = APIRouter(tags=["configuration gate"])

_SARIF: Final = "application/sarif+json"
_PARAMETERS: Final = ("vllm_version", "on_reject", "settings")


@router.post(
    "/validate",
    summary="Say whether `vllm serve` would accept a proposed configuration",
    openapi_extra={"requestBody": REQUEST_BODY},
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
    """Judge a proposal: a JSON envelope, a shell command, or YAML of three kinds.

    YAML is Kubernetes manifests, a compose file or a `--config` file.
    """
    gates = gates_of(request)
    envelope = await read_proposal(request, gates.settings.max_body_bytes, _PARAMETERS)
    if vllm_version:
        if envelope.vllm_versions:
            problem = Problem("given-twice", "the version is given twice", pointer="/vllm_version")
            raise InvalidEnvelope("vllm_version is in the body and in the query", (problem,))
        envelope = replace(envelope, vllm_versions=tuple(vllm_version))
    if gates.model_configs:
        default = gates.settings.vllm_version
        envelope = await run_in_threadpool(
            with_model_configs, envelope, gates.library, default, gates.model_configs
        )
    with gates.metrics.duration.labels("configuration").time():
        verdicts = judge(
            envelope,
            gates.library,
            gates.settings.vllm_version,
            gates.metrics.crashed,
            every_setting=settings == "all",
            policy=policy_of(gates.settings),
        )
    gates.metrics.judged(verdicts)
    accepted = all(verdict.accepted for verdict in verdicts)
    return _render(verdicts, request.headers, 200 if accepted else on_reject)


def _render(verdicts: Sequence[Verdict], headers: Mapping[str, str], status: int) -> Response:
    wanted = headers.get("accept", "")
    if _SARIF in wanted:
        return Response(render_sarif(verdicts), status, media_type=_SARIF)
    if "text/plain" in wanted and "json" not in wanted:
        return PlainTextResponse(render_text(verdicts), status)
    return Response(encode_json(answer(verdicts)), status, media_type="application/json")
