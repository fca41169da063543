"""JSON bodies as Starlette writes them, with vLLM's answer to what JSON cannot say."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from app.simulator.errors import InvalidRequest


def json_response(body: dict[str, Any]) -> JSONResponse:
    """Render a body.

    Raises:
        InvalidRequest: it has a NaN, which vLLM up to 0.31 does not keep out.
    """
    try:
        return JSONResponse(body)
    except ValueError as error:
        raise InvalidRequest("Out of range float values are not JSON compliant") from error
