"""What can go wrong between a client and the backend, each with an honest status.

    AdmissionError
    ├── BackendFault
    │   ├── BackendUnreachable    502  refused, no such host, TLS; nothing was sent
    │   ├── BackendDisconnected   502  reset or closed before (or while) it answered
    │   ├── BackendGarbled        502  what came back is not HTTP, or breaks off
    │   └── BackendTimeout        504  no connection, or no byte, for too long
    ├── BodyTooSlow               408  the client sends its body slower than allowed
    ├── HeaderTooLarge            431
    ├── ReaderTooSlow             408  the client takes nothing of its answer; it is cut off
    ├── StreamTooLong             504  the answer goes on for longer than allowed
    └── Unavailable               503  nothing was sent; Retry-After says when to come back
        ├── Overloaded                 too many requests are in flight
        ├── CircuitOpen                no backend has answered of late
        └── Draining                   this process is about to end

`ClientLeft` is no answer to anybody: the client is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
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


class HeaderTooLarge(AdmissionError):
    """The request's line and header fields are over the limit."""

    status = 431
    slug = "request-header-too-large"
    title = "Request header fields too large"
    vllm_type = "RequestHeaderFieldsTooLargeError"


class ReaderTooSlow(AdmissionError):
    """The client takes nothing of the answer that waits for it."""

    status = 408
    slug = "client-too-slow"
    title = "Request timeout"
    vllm_type = "RequestTimeoutError"


class StreamTooLong(AdmissionError):
    """The exchange lasts longer than the setting allows."""

    status = 504
    slug = "stream-too-long"
    title = "Gateway timeout"
    vllm_type = "GatewayTimeoutError"


@dataclass(eq=False)
class Unavailable(AdmissionError):
    """Not now; nothing was sent to a backend, so it is safe to retry after `retry_after` s."""

    retry_after: float = 5.0

    status = 503
    slug = "unavailable"
    title = "Service unavailable"
    vllm_type = "ServiceUnavailableError"


class Overloaded(Unavailable):
    """As many requests are in flight, and wait, as may."""

    slug = "overloaded"


class CircuitOpen(Unavailable):
    """No backend has answered of late, so that none is asked."""

    slug = "circuit-open"


class NotCounted(Unavailable):
    """What a rule needs to know of the body could not be had just now."""

    slug = "tokens-not-counted"


class Draining(Unavailable):
    """The process ends once the requests in flight have."""

    slug = "draining"


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
