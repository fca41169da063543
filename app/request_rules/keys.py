"""The rule about members that a route does not have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import UNKNOWN, RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.serve_config.suggest import hint, nearest
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

_MOST: Final = 5
_LONGEST: Final = 64


@request_rule(
    Declaration(
        id="request-unknown-key",
        title="Members that the route does not have are ignored",
        explanation="vLLM takes any member, and ignores those that this route of this version "
        "does not have, at the top level and in `sampling_params`: a misspelt `top_k`, or a "
        "field of another route, changes nothing and nobody is told. The known fields are "
        "extracted from each vLLM version.",
        remedy="Correct the name. `VLLM_ADMISSION_REQUEST_STRICT` rejects such requests.",
        severity=Severity.WARNING,
        area="request",
        gate=Gate.REQUEST,
        source="entrypoints/serve/engine/protocol.py::OpenAIBaseModel.__log_extra_fields__",
        bad=(
            RequestExample('{"token_ids": [1], "sampling_params": {"topk": 5}}'),
            RequestExample('{"prompt": "a", "max_completion_tokens": 16}', route=Route.COMPLETIONS),
            RequestExample('{"token_ids": [1], "sampling_params": {}, "temperature": 1}'),
        ),
        good=(
            RequestExample('{"token_ids": [1], "sampling_params": {"top_k": 5}}'),
            RequestExample('{"messages": [], "max_completion_tokens": 16}', route=Route.CHAT),
        ),
    ),
    fields=(UNKNOWN,),
)
def unknown(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Tell of each such member, at most five of them."""
    if request.by_invocation:  # which model vLLM reads it with depends on the server
        return
    for place, name in request.unknown[:_MOST]:
        pointer = f"{place}/{name[:_LONGEST].replace('~', '~0').replace('/', '~1')}"
        yield unknown.finding(
            request,
            name,
            f"{name[:_LONGEST]!r} is ignored{_advice(request, served, place, name)}",
            location=Location(source="body", pointer=pointer),
        )


@lru_cache(maxsize=1024)
def _near(name: str, known: frozenset[str]) -> str:
    """Give the hint; cached, as the same client sends the same members again and again."""
    return hint(nearest(name, known))


def _advice(request: GenerationRequest, served: Served, place: str, name: str) -> str:
    facts = served.catalogue.requests
    sampling = facts.sampling_params
    own = facts.routes.get(request.route)
    if place:
        known = frozenset() if sampling is None else sampling.names
        if own is not None and name in own.names:
            return "; it belongs beside sampling_params"
    else:
        known = frozenset() if own is None else own.names
        if request.route is Route.GENERATE and sampling is not None and name in sampling.names:
            return "; it belongs into sampling_params"
    # A long one is near to nothing, and must not be kept.
    near = _near(name, known) if len(name) <= _LONGEST else ""
    if near:
        return near
    others = [route for route, fields in facts.routes.items() if name in fields.names]
    return f"; it is a member of {others[0]}" if others else ""
