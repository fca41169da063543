"""Seeds for requests that have none, so that their draws can be repeated.

Without a seed vLLM takes one of its own and does not return it
(`v1/worker/gpu/sample/states.py::SamplingStates.add_request`): such a response can never be
proved. The seed here follows from the request id alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from app.request_rules.json_text import JsonObject, object_at
from app.request_rules.masks import effective
from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.seed_place import SeedPlace
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

_ROUTES = frozenset({Route.GENERATE, Route.COMPLETIONS, Route.CHAT})


def lacks_seed(request: GenerationRequest, served: Served) -> bool:
    """Whether the request samples with a seed of the engine's choice.

    Null and -1 are no seeds either. Greedy requests, beam search and forced tokens draw
    nothing.
    """
    if request.route not in _ROUTES:
        return False
    if request.sent("seed") not in (UNSET, None) and request.integer("seed") != -1:
        return False
    if request.switch("use_beam_search") or request.has("trace_decode_token_ids"):
        return False
    temperature = effective(request, "temperature", served.temperature, 1.0)
    return temperature is None or temperature.number > 0


def seed_place(route: Route, body: bytes) -> SeedPlace | None:
    """Find where a body takes a seed.

    None where that cannot be done well: several prompts in one request would share the seed,
    and equal prompts then give equal texts; the body is not UTF-8; it has too many parts.
    """
    outer = object_at(body)
    if outer is None or (route is Route.COMPLETIONS and _several_prompts(outer, body)):
        return None
    holder: JsonObject | None = outer
    if route is Route.GENERATE:
        span = outer.members.get("sampling_params")
        holder = None if span is None else object_at(body, span[0])
    return None if holder is None else SeedPlace(*holder.place_of("seed"))


def _several_prompts(outer: JsonObject, body: bytes) -> bool:
    for name in ("prompt", "prompt_embeds"):
        start, end = outer.members.get(name, (0, 0))
        head = body[start:end].lstrip(b"[ \t\n\r")[:1] if body[start : start + 1] == b"[" else b""
        nested = body[start:end].count(b"[") > 1
        if (head == b'"' or nested) and _length(body[start:end]) != 1:
            return True
    return False


def _length(array: bytes) -> int:
    try:
        return len(msgspec.json.decode(array, type=list[msgspec.Raw]))
    except msgspec.MsgspecError:
        return 0


@request_rule(
    Declaration(
        id="request-seed-missing",
        title="A request that samples should have a seed",
        explanation="Without a seed vLLM takes one of its own and returns it nowhere, so the draw "
        "can never be repeated or proved. The rule is off unless a setting names it; as `repair` "
        "(or with `VLLM_ADMISSION_INJECT_SEED`) the gate adds a seed that follows from the "
        "request id.",
        remedy="Send a `seed`, or let the gate add one.",
        severity=Severity.WARNING,
        area="request",
        gate=Gate.REQUEST,
        source="v1/worker/gpu/sample/states.py::SamplingStates.add_request",
        bad=(RequestExample('{"token_ids": [1], "sampling_params": {"temperature": 1}}'),),
        good=(RequestExample('{"token_ids": [1], "sampling_params": {"seed": 1}}'),),
    ),
    can_repair=True,
    on=False,
)
def missing_seed(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Tell of requests whose draw nobody can repeat."""
    if lacks_seed(request, served):
        yield missing_seed.finding(
            request, "seed", "the request has no seed, so its draw cannot be repeated"
        )
