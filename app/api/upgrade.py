"""POST /upgrade: what changes for a proposal between two vLLM versions."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from app.api import upgrade_schemas as schemas
from app.api.problems import problem_responses
from app.api.proposals import REQUEST_BODY, read_proposal
from app.api.state import gates_of
from app.documents import encode_json
from app.upgrade.check import answer, check_upgrade
from app.upgrade.text import render_upgrades

router = APIRouter(tags=["configuration gate"])

_PARAMETERS: Final = ("from", "to", "on_reject")


@router.post(
    "/upgrade",
    summary="Say what changes for a proposed configuration between two vLLM versions",
    openapi_extra={"requestBody": REQUEST_BODY},
    response_model=schemas.UpgradeModel | schemas.UpgradesModel,
    responses={
        200: {
            "description": "The report; for several services of a compose file one for each.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problem_responses(400, 413, 415, 422),
    },
)
async def upgrade_proposal(
    request: Request,
    old: Annotated[
        str | None,
        Query(alias="from", description="The version in use; default: that of the image."),
    ] = None,
    new: Annotated[
        str | None, Query(alias="to", description="The version to go to; default: the newest.")
    ] = None,
    on_reject: Annotated[
        int, Query(ge=200, le=499, description="Status to answer with when not accepted.")
    ] = 200,
) -> Response:
    """Compare two versions: what is refused, renamed, removed, read or defaulted differently."""
    gates = gates_of(request)
    envelope = await read_proposal(request, gates.settings.max_body_bytes, _PARAMETERS)
    with gates.metrics.duration.labels("configuration").time():
        upgrades = check_upgrade(envelope, gates.library, old, new, gates.metrics.crashed)
    accepted = all(report.after.accepted for report in upgrades)
    status = 200 if accepted else on_reject
    wanted = request.headers.get("accept", "")
    if "text/plain" in wanted and "json" not in wanted:
        return PlainTextResponse(render_upgrades(upgrades), status)
    return Response(encode_json(answer(upgrades)), status, media_type="application/json")
