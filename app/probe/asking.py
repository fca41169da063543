"""Talking to the probed backend."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from packaging.version import InvalidVersion, Version

from app.catalogue.semantics import EngineSemantics
from app.errors import UnknownVersion
from app.probe.report import Target
from app.relay.faults import BackendFault, fault_of
from app.relay.fleet import Upstream
from app.relay.headers import RawHeaders
from app.replay.wire.case import FIRST_VERSION
from app.request_rules.request import Route

_MOST_BYTES = 64 * 2**20
_SHOWN = 300


class BackendUnfit(BackendFault):
    """The backend answers, and cannot be probed; the detail says what to change."""

    slug = "backend-unfit"


class RequestFailed(Exception):
    """One request was not answered with a generation; the text says why."""


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """A whole response, timed in seconds from sending the request."""

    status: int
    body: bytes
    first_byte: float
    seconds: float


async def ask(
    backend: Upstream, method: str, target: bytes, headers: RawHeaders, body: bytes | None = None
) -> RawAnswer:
    """Send one request and read its answer.

    Raises:
        BackendFault: no answer came, or it broke off.
        RequestFailed: it is too long.
    """
    began = time.perf_counter()
    first: float | None = None
    try:
        response = await backend.send(method, target, headers, body)
        try:
            parts, size = [], 0
            async for part in response.aiter_raw():
                first = first or time.perf_counter()
                parts.append(part)
                size += len(part)
                if size > _MOST_BYTES:
                    raise RequestFailed(f"the response is longer than {_MOST_BYTES} bytes")
        finally:
            await response.aclose()
    except httpx.TransportError as error:
        raise fault_of(error) from error
    ended = time.perf_counter()
    return RawAnswer(response.status_code, b"".join(parts), (first or ended) - began, ended - began)


async def look(backend: Upstream, headers: RawHeaders) -> Target:
    """Ask a backend what it is.

    Raises:
        BackendFault: it cannot be reached, or wants an API key.
    """
    version = _member(await ask(backend, "GET", b"/version", headers), "version")
    models = await ask(backend, "GET", b"/v1/models", headers)
    if models.status == 401:
        raise BackendUnfit(_NEEDS_KEY)
    cards = _json(models).get("data") if models.status == 200 else None
    card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
    length = card.get("max_model_len")
    return Target(
        url=str(backend.url).rstrip("/"),
        version=version if isinstance(version, str) else None,
        model=card.get("id") if isinstance(card.get("id"), str) else None,
        max_model_len=length if isinstance(length, int) else None,
    )


def chosen_version(target: Target, given: str | None) -> str:
    """Settle the version to replay with.

    Raises:
        BackendUnfit: nobody said it, or the backend's own is no version number.
        UnknownVersion: the one given is none, or returns no masks.
    """
    if given is None and target.version is None:
        raise BackendUnfit(
            f"{target.url}/version does not tell a vLLM version; is this a vLLM server? If it is, "
            "say which version (--vllm-version, or vllm_version)"
        )
    text = given or target.version or ""
    try:
        version = Version(text)
    except InvalidVersion:
        if given is not None:
            raise UnknownVersion(f"{given!r} is no version number such as 0.32.0") from None
        raise BackendUnfit(
            f"{target.url} says that it is vLLM {text!r}, which is no version number; say which "
            "release it is based on (--vllm-version, or vllm_version)"
        ) from None
    if Version(version.base_version) < FIRST_VERSION:
        raise UnknownVersion(f"vLLM {text} returns no sampling masks; they exist from 0.28.0 on")
    return str(version)


def refuse_unfit(answer: RawAnswer, version: str, semantics: EngineSemantics) -> None:
    """Raise for a status that every other request would get too.

    Raises:
        BackendUnfit: the route is off, or an API key is wanted.
    """
    if answer.status == 401:
        raise BackendUnfit(_NEEDS_KEY)
    if answer.status in {403, 404} and _names_route(answer):
        hint = (
            f"start vLLM {version} with --enable-scale-out (or --tokens-only)"
            if semantics.generate_needs_scale_out
            else f"vLLM {version} serves it for every generating model; is this one?"
        )
        raise BackendUnfit(
            f"{Route.GENERATE.value} is off at this backend (status {answer.status}: "
            f"{message_of(answer)}); {hint}"
        )


def message_of(answer: RawAnswer) -> str:
    """Give the error's text, in vLLM's shape or FastAPI's."""
    body = _json(answer)
    error = body.get("error")
    text = error.get("message") if isinstance(error, Mapping) else error or body.get("detail")
    if isinstance(text, str) and text:
        return text[:_SHOWN]
    return "no message" if body else answer.body[:_SHOWN].decode("utf-8", "replace")


def _names_route(answer: RawAnswer) -> bool:
    """Whether the status is about the route, and not an unknown model."""
    error = _json(answer).get("error")
    return not (isinstance(error, Mapping) and error.get("type") == "NotFoundError")


def _member(answer: RawAnswer, name: str) -> Any:
    return _json(answer).get(name) if answer.status == 200 else None


def _json(answer: RawAnswer) -> Mapping[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


_NEEDS_KEY = (
    "the backend wants an API key (status 401): give --api-key or the variable VLLM_API_KEY; "
    "with POST /replay/probe, send the Authorization field that the backend expects"
)
