"""The catalogue and the rules, as data."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from app.api import schemas
from app.api.problems import problem_responses
from app.api.state import gates_of
from app.errors import AdmissionError
from app.rules.registry import rules_as_json

router = APIRouter(tags=["facts"])


class UnknownRule(AdmissionError):
    """There is no rule of that id."""

    status = 404
    slug = "unknown-rule"
    title = "Unknown rule"


@router.get("/rules", summary="All rules", response_model=list[schemas.RuleModel])
async def rules() -> Response:
    """List every rule: parser diagnostics, configuration, request and replay rules."""
    return JSONResponse(rules_as_json())


@router.get(
    "/rules/{rule_id}",
    summary="One rule",
    response_model=schemas.RuleModel,
    responses=problem_responses(404),
)
async def rule(rule_id: str) -> Response:
    """Explain one rule: what it means, what to do, where vLLM has it, examples."""
    known = {entry["id"]: entry for entry in rules_as_json()}
    if rule_id not in known:
        close = difflib.get_close_matches(rule_id, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "; GET /rules lists them"
        raise UnknownRule(f"there is no rule {rule_id!r}{hint}")
    return JSONResponse(known[rule_id])


@router.get("/versions", summary="Supported vLLM versions", response_model=schemas.VersionsModel)
async def versions(request: Request) -> Response:
    """List the vLLM versions that can be judged, and which one is assumed."""
    gates = gates_of(request)
    return JSONResponse(
        {
            "versions": list(gates.library.versions),
            "default": gates.settings.vllm_version or gates.library.newest,
        }
    )


@router.get(
    "/versions/{vllm_version}/flags",
    summary="The flags of one version",
    response_model=list[schemas.FlagModel],
    responses=problem_responses(422),
)
async def flags(request: Request, vllm_version: str) -> Response:
    """List what `vllm serve` of one version takes, as extracted from it."""
    catalogue = gates_of(request).library.get(vllm_version)
    listed: list[dict[str, Any]] = [msgspec.to_builtins(flag) for flag in catalogue.flags]
    return JSONResponse(listed)
