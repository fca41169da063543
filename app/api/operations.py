"""Liveness, readiness and metrics.

Liveness depends on nothing but the event loop. Readiness is about our own state: whether the
configured proposal was admitted. `?verbose` lists the checks as kube-apiserver does.
"""

from __future__ import annotations

from importlib.metadata import version
from ipaddress import IPv6Address, ip_address
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from app.api.state import Gates, gates_of
from app.certificates.serving import ServingCertificate, now
from app.telemetry.registry import exposition

router = APIRouter(tags=["operations"])

_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_Verbose = Annotated[str | None, Query(description="List every check.")]


@router.get("/livez", summary="Is the process alive", response_class=PlainTextResponse)
async def livez() -> Response:
    """Answer as long as the event loop runs."""
    return PlainTextResponse("ok\n")


@router.get(
    "/readyz",
    summary="Can the gates do their work",
    response_class=PlainTextResponse,
    responses={503: {"description": "Not ready; the text says why.", **_TEXT}},
)
async def readyz(request: Request, verbose: _Verbose = None) -> Response:
    """Answer 200 when every check passes, else 503 with the reasons."""
    checks = _checks(gates_of(request), getattr(request.app.state, "certificate", None))
    failed = [name for name, reason in checks.items() if reason]
    if verbose is None and not failed:
        return PlainTextResponse("ok\n")
    lines = [f"[-]{name}: {why}" if why else f"[+]{name} ok" for name, why in checks.items()]
    lines += [f"[!]{remark}" for remark in gates_of(request).request_gate.remarks]
    lines.append(f"readyz check {'failed' if failed else 'passed'}")
    return PlainTextResponse("\n".join(lines) + "\n", 503 if failed else 200)


@router.get(
    "/metrics",
    summary="Metrics of all workers, in Prometheus's text format or as OpenMetrics",
    response_class=PlainTextResponse,
    responses={
        200: {
            "description": "OpenMetrics where `Accept` asks for it.",
            "content": {"application/openmetrics-text": {"schema": {"type": "string"}}},
        }
    },
)
async def metrics(request: Request) -> Response:
    """Give the metrics; docs/operations.md lists them."""
    registry = gates_of(request).registry
    content, media_type = await run_in_threadpool(
        exposition, registry, request.headers.get("accept", "")
    )
    return Response(content, headers={"content-type": media_type})


@router.get(
    "/drain",
    summary="Take no more requests and answer when those in flight have ended",
    response_class=PlainTextResponse,
    responses={
        403: {"description": "Asked from elsewhere than the same pod.", **_TEXT},
        409: {"description": "There are several workers, and only one would hear it.", **_TEXT},
    },
)
async def drain(request: Request) -> Response:
    """Let a sidecar's neighbour wait, in its `preStop` hook, until it is needed no more.

    Only for callers on the loopback of the same pod: it ends the service for everybody. If the
    pod has not ended a minute later, the neighbour was only restarted, and the service goes on.
    """
    gates = gates_of(request)
    if request.client is None or not _is_loopback(request.client.host):
        return PlainTextResponse("only the same pod may ask for this\n", 403)
    if gates.settings.workers > 1:
        return PlainTextResponse("there are several workers: send SIGTERM instead\n", 409)
    await gates.request_gate.pause()
    return PlainTextResponse("drained\n")


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
        # What a socket for both families calls a caller by IPv4.
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback
    except ValueError:
        return False


def _checks(gates: Gates, certificate: ServingCertificate | None) -> dict[str, str | None]:
    """Each check by name, with the reason where it fails."""
    checks = {
        "catalogue": None if gates.library.versions else "there is no catalogue",
        "serve-config": gates.admitted.reason,
        **gates.request_gate.checks,
    }
    if certificate is not None:
        checks["certificate"] = certificate.problem(now())
    return checks


def service_version() -> str:
    """The version of this distribution."""
    return version("vllm-admission")
