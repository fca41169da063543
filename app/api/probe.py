"""POST /replay/probe: an end-to-end check of the configured backend."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field, ValidationError
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.api.body import read_body
from app.api.problems import problem_responses
from app.api.schemas import Model
from app.api.state import gates_of
from app.errors import InvalidEnvelope, NotReady, Problem
from app.probe.plan import ProbeOptions
from app.probe.report import ProbeReport, render_text
from app.probe.run import probe
from app.replay.evidence import ReplayOptions
from app.settings import Settings

router = APIRouter(tags=["replay gate"])

_GONE: Final = 499
_LARGEST_SEED: Final = 2**63 - 1
_LONGEST_PROMPT: Final = 131_072
_DEFAULT: Final = ProbeOptions()


class ProbeRequest(Model):
    """What to send; everything may be left out. The service's settings bound it."""

    requests: int = Field(_DEFAULT.requests, ge=1, description="How many generations.")
    max_tokens: int = Field(_DEFAULT.max_tokens, ge=1, description="Tokens a sequence.")
    concurrency: int = Field(_DEFAULT.concurrency, ge=1, description="Requests at a time.")
    seed: int = Field(_DEFAULT.seed, ge=0, le=_LARGEST_SEED, description="Of the plan.")
    prompt_lengths: list[Annotated[int, Field(ge=1, le=_LONGEST_PROMPT)]] = Field(
        list(_DEFAULT.prompt_lengths), min_length=1, max_length=16, description="In tokens."
    )
    token_ids: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=2, max_length=2)
    ] = Field(list(_DEFAULT.token_ids), description="Lowest and highest id in prompts.")
    max_logprobs: int = Field(
        _DEFAULT.max_logprobs, ge=1, le=1000, description="The server's --max-logprobs."
    )
    streaming: bool = Field(_DEFAULT.streaming, description="Whether to send streams too.")
    vllm_version: str | None = Field(None, description="Default: what the backend says.")
    model: str | None = Field(None, description="To name in the requests.")


class ProbeTargetModel(Model):
    """Who was probed."""

    url: str
    version: str | None = Field(description="That the backend tells of itself.")
    model: str | None
    max_model_len: int | None


class ProbeReportModel(Model):
    """What a probe of the backend found."""

    schema_name: str = Field(alias="schema")
    verdict: Literal["consistent", "inconsistent", "unproven"]
    vllm_version: str = Field(description="Whose draw was repeated.")
    backend: ProbeTargetModel
    remarks: list[str]
    seed: int = Field(description="Of the plan.")
    requests: dict[str, Any] = Field(description="planned, replayed, failed, and by verdict.")
    rows: dict[str, Any] = Field(description="As in a replay report, added up.")
    parameters: dict[str, dict[str, dict[str, int]]] = Field(
        description="Requests, failures and rows for each value of each parameter."
    )
    findings: list[dict[str, Any]] = Field(description="Broken rules, with the first request.")
    failures: list[dict[str, Any]] = Field(description="Errors, how often, and where first.")
    latency: dict[str, Any] = Field(description="In seconds.")


class ProbeRunning(NotReady):
    """One probe at a time."""

    slug = "probe-running"
    title = "A probe is running"


_REQUEST_BODY: Final = {
    "required": False,
    "content": {"application/json": {"schema": ProbeRequest.model_json_schema()}},
}


@router.post(
    "/replay/probe",
    summary="Send seeded generations to the backend and replay what returns",
    openapi_extra={"requestBody": _REQUEST_BODY},
    response_model=ProbeReportModel,
    responses={
        200: {
            "description": "The report.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problem_responses(400, 413, 422, 502, 503, 504),
    },
)
async def probe_backend(
    request: Request,
    on_reject: Annotated[
        int, Query(ge=200, le=499, description="Status to answer with when not consistent.")
    ] = 200,
) -> Response:
    """Probe the backend of VLLM_ADMISSION_BACKEND_URL; the Authorization field is passed on.

    One probe runs at a time, within limits that the settings give; it ends with its client.
    """
    gates = gates_of(request)
    settings, gate = gates.settings, gates.request_gate
    asked = _read(await read_body(request, settings.max_body_bytes))
    options = _options(asked, settings)
    if gate.backend is None:
        raise NotReady("no backend to probe: set VLLM_ADMISSION_BACKEND_URL")
    if gate.probing:
        raise ProbeRunning("another probe is running; try again when it is done")
    gate.probing = True
    try:
        report = await _while_present(
            request,
            probe(
                gate.backend,
                options,
                vllm_version=asked.vllm_version,
                replay_options=gate.facts.options if gate.facts is not None else ReplayOptions(),
                model=asked.model,
                authorization=request.headers.get("authorization"),
            ),
        )
    finally:
        gate.probing = False
    if report is None:
        return Response(status_code=_GONE)
    status = 200 if report.verdict == "consistent" else on_reject
    accept = request.headers.get("accept", "")
    if "text/plain" in accept and "json" not in accept:
        return PlainTextResponse(render_text(report), status)
    return JSONResponse(report.as_json(), status)


def _read(body: bytes) -> ProbeRequest:
    try:
        return ProbeRequest.model_validate_json(body if body.strip() else b"{}", strict=True)
    except ValidationError as error:
        problems = tuple(
            Problem(entry["type"], entry["msg"], "/" + "/".join(map(str, entry["loc"])))
            for entry in error.errors(include_url=False)
        )
        raise InvalidEnvelope("the probe's options are not valid", problems) from None


def _options(asked: ProbeRequest, settings: Settings) -> ProbeOptions:
    """Hold what is asked for against the limits of this service."""
    limits = {
        "requests": settings.probe_max_requests,
        "max_tokens": settings.probe_max_tokens,
        "concurrency": settings.probe_max_concurrency,
    }
    asked = asked.model_copy(
        update={
            name: min(getattr(asked, name), limit)
            for name, limit in limits.items()
            if name not in asked.model_fields_set
        }
    )
    problems = [
        Problem(
            "over-limit",
            f"at most {limit} here (VLLM_ADMISSION_PROBE_MAX_{name.upper()})",
            f"/{name}",
        )
        for name, limit in limits.items()
        if getattr(asked, name) > limit
    ]
    low, high = asked.token_ids
    if low > high:
        problems.append(Problem("empty-range", "the lowest id is above the highest", "/token_ids"))
    if problems:
        raise InvalidEnvelope("the probe's options are not valid", tuple(problems))
    return ProbeOptions(
        requests=asked.requests,
        max_tokens=asked.max_tokens,
        concurrency=asked.concurrency,
        seed=asked.seed,
        prompt_lengths=tuple(asked.prompt_lengths),
        token_ids=(low, high),
        max_logprobs=asked.max_logprobs,
        streaming=asked.streaming,
        max_seconds=settings.probe_max_seconds,
    )


async def _while_present(
    request: Request, work: Coroutine[Any, Any, ProbeReport]
) -> ProbeReport | None:
    """Await `work`; cancel it, and give None, when the client leaves."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
