"""Every failure of our own endpoints as RFC 9457 problem+json."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.documents import encode_json
from app.errors import AdmissionError, InvalidEnvelope, Problem
from app.relay.response import INTERNAL, RETRY_AFTER_SECONDS

PROBLEM_MEDIA_TYPE = "application/problem+json"
# As RFC 9110 has them; Python before 3.13 gives what they were called before.
_PHRASES: Final = {413: "Content Too Large", 422: "Unprocessable Content"}


class ProblemEntry(BaseModel):
    """One thing that is wrong, and where."""

    code: str = Field(description="Stable slug of the kind of mistake.")
    detail: str = Field(description="What is wrong and what to do.")
    pointer: str | None = Field(None, description="RFC 6901 JSON pointer into the body.")
    line: int | None = Field(None, description="1-based line, for text input.")
    column: int | None = Field(None, description="1-based column, for text input.")


class ProblemDetails(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = Field(None, description="`urn:request:` and the request id.")
    errors: list[ProblemEntry] | None = None


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare problem+json answers in OpenAPI for the given statuses."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {
            "description": _phrase(status),
            "content": {PROBLEM_MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


def _phrase(status: int) -> str:
    return _PHRASES.get(status) or HTTPStatus(status).phrase


def install(app: FastAPI) -> None:
    """Register the exception handlers."""
    app.add_exception_handler(AdmissionError, _admission_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def _respond(request: Request, error: AdmissionError) -> Response:
    request_id = request.scope.get("request_id")
    waits = error.status == HTTPStatus.SERVICE_UNAVAILABLE
    return Response(
        encode_json(error.problem_json(request_id)),
        error.status,
        headers={"retry-after": RETRY_AFTER_SECONDS.decode()} if waits else None,
        media_type=PROBLEM_MEDIA_TYPE,
    )


async def _admission_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AdmissionError)  # noqa: S101 - what it is registered for
    return _respond(request, error)


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it is registered for
    problems = tuple(
        Problem(entry["type"], entry["msg"], pointer="/" + "/".join(map(str, entry["loc"][1:])))
        for entry in error.errors()
    )
    return _respond(request, InvalidEnvelope("the request's parameters are not valid", problems))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    body = {
        "type": "about:blank",
        "title": _phrase(error.status_code),
        "status": error.status_code,
        "detail": f"{request.method} {request.url.path}: {error.detail}",
    }
    return Response(
        encode_json(body), error.status_code, headers=error.headers, media_type=PROBLEM_MEDIA_TYPE
    )


async def _unexpected(request: Request, _: Exception) -> Response:
    return _respond(request, AdmissionError(INTERNAL))
