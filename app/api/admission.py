"""Kubernetes admission: reviews in, decisions out, whatever the object."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.body import read_body
from app.api.problems import problem_responses
from app.api.state import Gates, gates_of
from app.documents import decode_json, decode_text, encode_json
from app.kubernetes.mode import Mode
from app.kubernetes.review import Decision, Judge, crashed, mutated, validated
from app.validation import judge, policy_of

router = APIRouter(prefix="/admission", tags=["admission"])

_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The review, answered. Anything else counts as a failure of the webhook.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    **problem_responses(400, 413, 415),
}
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "An AdmissionReview of admission.k8s.io/v1.",
                }
            }
        },
    }
}
# Where the texts of cut-off warnings can be had in full.
_MORE_AT: Final = "vllm-admission validate MANIFEST"


@router.post(
    "/validate",
    summary="Answer a validating admission review, in the mode of the settings",
    response_class=Response,
    responses=_ANSWER,
    openapi_extra=_BODY,
)
async def validate(request: Request) -> Response:
    """Judge what is created or changed."""
    return await _validated(request, gates_of(request).settings.admission_mode)


@router.post(
    "/validate/{mode}",
    summary="Answer a validating admission review, in the mode of the namespace",
    response_class=Response,
    responses=_ANSWER,
    openapi_extra=_BODY,
)
async def validate_in_mode(request: Request, mode: Mode) -> Response:
    """Judge what is created or changed; the webhook's path says the namespace's mode."""
    return await _validated(request, mode)


@router.post(
    "/mutate",
    summary="Answer a mutating admission review: safe fixes as a JSONPatch",
    response_class=Response,
    responses=_ANSWER,
    openapi_extra=_BODY,
)
async def mutate(request: Request) -> Response:
    """Mend what vLLM would refuse, where that gives nothing up."""

    def answer(data: object, judge: Judge) -> Decision:
        return mutated(data, judge, _MORE_AT)

    return await _answered(request, answer, mend=True)


async def _validated(request: Request, mode: Mode) -> Response:
    def answer(data: object, judge: Judge) -> Decision:
        return validated(data, mode, judge, _MORE_AT)

    return await _answered(request, answer, mend=False)


async def _answered(
    request: Request, answer: Callable[[object, Judge], Decision], *, mend: bool
) -> Response:
    gates = gates_of(request)
    body = await read_body(request, gates.settings.max_review_bytes)
    began = time.perf_counter()
    data = decode_json(decode_text(body))
    try:
        decision = answer(data, _judge(gates, mend))
    except Exception as error:  # a mistake of ours is no reason to keep anything from a cluster
        gates.metrics.crashed("admission", error)
        decision = crashed(data, _MORE_AT)
    gates.metrics.judged(decision.verdicts)
    gates.metrics.reviewed(decision.operation, decision.decision, time.perf_counter() - began)
    return Response(encode_json(decision.body), media_type="application/json")


def _judge(gates: Gates, mend: bool) -> Judge:
    settings = gates.settings
    policy = policy_of(settings)
    return lambda envelope: judge(
        envelope,
        gates.library,
        settings.vllm_version,
        gates.metrics.crashed,
        policy=policy,
        mend=mend,
    )
