"""POST /replay: whether a response is what the engine drew."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from app.api import replay_schemas
from app.api.body import read_body
from app.api.problems import problem_responses
from app.api.state import gates_of
from app.replay.report import Report, render_text
from app.replaying import NDJSON, replay_case, report_lines

router = APIRouter(tags=["replay gate"])

# A case of this size takes a few milliseconds, less than it costs to reach another process.
_SMALL_BYTES: Final = 64 * 1024

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
    response_model=replay_schemas.ReplayReport,
    responses={
        200: {
            "description": "The report.",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                NDJSON: {"schema": {"$ref": "#/components/schemas/ReplayBatchLine"}},
            },
        },
        **problem_responses(400, 413, 415, 422),
    },
)
async def replay_response(
    request: Request,
    on_reject: Annotated[
        int, Query(ge=200, le=499, description="Status to answer with when not consistent.")
    ] = 200,
    detail: Annotated[
        Literal["rows"] | None,
        Query(description="Answer JSON lines: the report, and after it every row."),
    ] = None,
) -> Response:
    """Replay `{vllm_version, request, response}` of `/inference/v1/generate`."""
    gates = gates_of(request)
    body = await read_body(request, gates.settings.max_replay_bytes)
    rows = detail == "rows"
    with gates.metrics.duration.labels("replay").time():
        if len(body) <= _SMALL_BYTES:
            report, lines = await to_thread.run_sync(partial(_replay, body, rows=rows))
        else:
            report, lines = await gates.replay_workers.run(_replay, body, rows=rows)
    gates.metrics.replayed(report)
    status = 200 if report.consistent else on_reject
    if detail == "rows":
        return Response(lines, status, media_type=NDJSON)
    accept = request.headers.get("accept", "")
    if "text/plain" in accept and "json" not in accept:
        return PlainTextResponse(render_text(report), status)
    return Response(lines, status, media_type="application/json")


def _replay(body: bytes, *, rows: bool) -> tuple[Report, bytes]:
    replayed = replay_case(body, rows=rows)
    return replayed.report, b"".join(report_lines(replayed))
