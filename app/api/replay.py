"""POST /replay: whether a response is what the engine drew."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.api import schemas
from app.api.body import read_body
from app.api.problems import problem_responses
from app.api.state import gates_of
from app.replay.report import render_text, replay

router = APIRouter(tags=["replay gate"])

_REQUEST_BODY: Final = {
    "required": True,
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/ReplayCase"}},
    },
}


@router.post(
    "/replay",
    summary="Re-sample a response from its masks and logprobs and report whether it is consistent",
    openapi_extra={"requestBody": _REQUEST_BODY},
    response_model=schemas.ReplayReport,
    responses={
        200: {
            "description": "The report.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problem_responses(400, 413, 415, 422),
    },
)
async def replay_response(
    request: Request,
    on_reject: Annotated[
        int, Query(ge=200, le=499, description="Status to answer with when not consistent.")
    ] = 200,
) -> Response:
    """Replay `{vllm_version, request, response}` of `/inference/v1/generate`."""
    gates = gates_of(request)
    body = await read_body(request, gates.settings.max_replay_bytes)
    # A long response takes tens of milliseconds, which the event loop's other streams would feel.
    with gates.metrics.duration.labels("replay").time():
        report = await run_in_threadpool(replay, body)
    gates.metrics.replayed(report)
    status = 200 if report.consistent else on_reject
    accept = request.headers.get("accept", "")
    if "text/plain" in accept and "json" not in accept:
        return PlainTextResponse(render_text(report), status)
    return JSONResponse(report.as_json(), status)
