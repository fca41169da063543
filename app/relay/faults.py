"""What can go wrong between a client and the backend, each with an honest status.

    AdmissionError
    ├── BackendFault
    │   ├── BackendUnreachable    502  refused, no such host, TLS; nothing was sent
    │   ├── BackendDisconnected   502  reset or closed before (or while) it answered
    │   ├── BackendGarbled        502  what came back is not HTTP, or breaks off
    │   └── BackendTimeout        504  no connection, or no byte, for too long
    └── BodyTooSlow               408  the client sends its body slower than allowed

`ClientLeft` is no answer to anybody: the client is gone.
"""

from __future__ import annotations

from typing import Any

import httpx

from app.errors import AdmissionError


class BackendFault(AdmissionError):
    """The backend cannot be asked, or does not answer."""

    status = 502
    slug = "backend-fault"
    title = "Bad gateway"
    vllm_type = "BadGatewayError"


class BackendUnreachable(BackendFault):
    """No connection; not one byte of the request was sent, so it is safe to retry."""

    slug = "backend-unreachable"


class BackendDisconnected(BackendFault):
    """The connection broke after the request, or part of it, was sent."""

    slug = "backend-disconnected"


class BackendGarbled(BackendFault):
    """The answer is not valid HTTP, or ends before its own length."""

    slug = "backend-garbled"


class BackendTimeout(BackendFault):
    """Connecting, or waiting for the next byte, took longer than allowed."""

    status = 504
    slug = "backend-timeout"
    title = "Gateway timeout"
    vllm_type = "GatewayTimeoutError"


class BodyTooSlow(AdmissionError):
    """The request body arrives too slowly (a slow-loris guard)."""

    status = 408
    slug = "request-body-too-slow"
    title = "Request timeout"
    vllm_type = "RequestTimeoutError"


class ClientLeft(Exception):
    """The client closed its connection before the exchange was over."""


def fault_of(error: httpx.TransportError) -> BackendFault:
    """Say an httpx transport error as the fault that the client is told."""
    reason = str(error) or type(error).__name__
    match error:
        case httpx.ConnectTimeout():
            return BackendTimeout(f"the vLLM backend did not accept a connection: {reason}")
        case httpx.TimeoutException():
            return BackendTimeout(f"the vLLM backend sent nothing for too long: {reason}")
        case httpx.ConnectError() | httpx.UnsupportedProtocol():
            return BackendUnreachable(f"the vLLM backend cannot be reached: {reason}")
        case httpx.ProtocolError():
            return BackendGarbled(f"the vLLM backend gave no valid HTTP answer: {reason}")
        case _:
            return BackendDisconnected(f"the vLLM backend closed the connection: {reason}")


def anthropic_json(error: dict[str, Any]) -> dict[str, Any]:
    """Put vLLM's error object into the shape of its `/v1/messages` route.

    Source: `entrypoints/anthropic/protocol.py::AnthropicErrorResponse`.
    """
    return {"type": "error", **error}
