"""Rules about the context length: prompt, output, and what fits.

Prompts of token ids are counted. Of a text only a bound is known: it has at least one token,
and where the operator says how long the longest token is, at least so many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import Change, RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

_FIELDS = {
    Route.GENERATE: ("max_tokens",),
    Route.COMPLETIONS: ("max_tokens",),
    Route.CHAT: ("max_completion_tokens", "max_tokens"),
    Route.CHAT_BATCH: ("max_completion_tokens", "max_tokens"),
    Route.RESPONSES: ("max_output_tokens",),
    Route.MESSAGES: ("max_tokens",),
}
_HARMONY = "gpt_oss"
_SHORT = "vllm serve m --max-model-len 16"
_SIXTEEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]"


@dataclass(frozen=True, slots=True)
class _Lengths:
    """What a request needs.

    Attributes:
        field: which field gives the output.
        output: tokens asked for; 0 where none are, and as vLLM counts them.
        sent: whether the client named the output.
        prompt: tokens of the longest prompt, at least.
        exact: whether that is its length.
    """

    field: str
    output: int
    sent: bool
    prompt: int
    exact: bool


def lengths(request: GenerationRequest, served: Served) -> _Lengths | None:
    """Measure a request; None if a length is none that vLLM takes."""
    if "lengths" not in request.memo:
        request.memo["lengths"] = _measured(request, served)
    known: _Lengths | None = request.memo["lengths"]
    return known


def _measured(request: GenerationRequest, served: Served) -> _Lengths | None:
    names = _FIELDS[request.route]
    name = next((n for n in names if request.has(n)), names[-1])
    output = request.integer(name)
    if output is None:
        if request.has(name):
            return None
        output = _default_output(request, served, name)
    prompts = request.prompts()
    kept = _kept(request)
    if kept is None:
        return None
    longest = max((min(len(prompt), kept) for prompt in prompts), default=0)
    if prompts and longest == 0:
        return None
    exact = bool(prompts) and request.body.get("content_parts") is None
    at_least = longest if exact else max(1, _fewest(request, served, kept))
    return _Lengths(name, output, request.has(name), at_least, exact)


def _default_output(request: GenerationRequest, served: Served, name: str) -> int:
    """Give what a missing or null output counts as: nothing, but on `/v1/completions`.

    Source there: `CompletionRequest.normalize_null_max_tokens`.
    """
    if request.route is not Route.COMPLETIONS:
        return 0
    facts = served.catalogue.requests.routes.get(request.route)
    default: Any = 0 if facts is None else facts.defaults.get(name)
    return default if isinstance(default, int) else 0


def _kept(request: GenerationRequest) -> int | None:
    """Give how many tokens truncation leaves; None if vLLM refuses it or it cuts to what fits."""
    if not request.has("truncate_prompt_tokens"):
        return 2**63
    kept = request.integer("truncate_prompt_tokens")
    return None if kept is None or kept < 0 else kept


def _fewest(request: GenerationRequest, served: Served, kept: int) -> int:
    """Give the least number of tokens that a text can have."""
    longest = served.limits.characters_per_token
    text = request.text() if longest else None
    return 0 if text is None or longest is None else min(-(-len(text) // longest), kept)


def _room(served: Served, known: _Lengths) -> int | None:
    """Give the output that fits beside the prompt, or None if the prompt alone does not."""
    if served.max_model_len is None:
        return None
    if not known.exact and served.catalogue.requests.output_is_reserved is not False:
        return None  # this version refuses what does not fit, and a text's length is unknown
    room = served.max_model_len - known.prompt
    return room if room >= 1 else None


def clamp(request: GenerationRequest, served: Served) -> Change | None:
    """Give the largest output that fits."""
    known = lengths(request, served)
    room = None if known is None else _room(served, known)
    if known is None or room is None or room >= known.output:
        return None
    return Change(known.field, room)


@request_rule(
    Declaration(
        id="request-context-length",
        title="Prompt and output must fit the context length",
        explanation="vLLM refuses a prompt that leaves no room for one token. The OpenAI-"
        "compatible routes refuse a `max_tokens` above `--max-model-len`, and up to 0.31 one "
        "that does not fit beside the prompt. Token ids are counted; of a text only a lower "
        "bound is used, so no text is refused that fits. On the chat routes gpt-oss checks no "
        "output, so without the model's config.json this is a warning there.",
        remedy="Send a shorter prompt or ask for fewer tokens; as `repair` the gate lowers "
        "`max_tokens` to what fits.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="renderers/params.py::TokenizeParams._token_len_check",
        bad=(
            RequestExample(f'{{"token_ids": {_SIXTEEN}, "sampling_params": {{}}}}', serve=_SHORT),
            RequestExample(
                '{"prompt": "a", "max_tokens": 17}', route=Route.COMPLETIONS, serve=_SHORT
            ),
            RequestExample(
                '{"prompt": [1, 2], "max_tokens": 15}',
                route=Route.COMPLETIONS,
                serve=_SHORT,
                versions="<0.32",
            ),
            RequestExample(
                '{"messages": [], "max_completion_tokens": 17}', route=Route.CHAT, serve=_SHORT
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"max_tokens": 99}}',
                note="this route cuts the output to what fits",
                serve=_SHORT,
            ),
            RequestExample(
                '{"prompt": [1, 2], "max_tokens": 14}', route=Route.COMPLETIONS, serve=_SHORT
            ),
            RequestExample(
                '{"prompt": "a long text", "max_tokens": 4}',
                route=Route.COMPLETIONS,
                serve=_SHORT,
            ),
        ),
    ),
    repair=clamp,
)
def length(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse what cannot fit, whatever a text's length turns out to be."""
    limit = served.max_model_len
    known = None if limit is None else lengths(request, served)
    if limit is None or known is None:
        return
    reserved = served.catalogue.requests.output_is_reserved is True
    # gpt-oss renders its chats itself, and checks no output there.
    chats = request.route not in (Route.GENERATE, Route.COMPLETIONS)
    if chats and served.model_type == _HARMONY:
        return
    severity = Severity.WARNING if chats and served.model_type is None else Severity.ERROR
    if request.route is not Route.GENERATE and known.output > limit:
        what = f"{known.field}={known.output} cannot be greater than max_model_len={limit}"
        field = known.field
    elif known.prompt > limit or (known.prompt == limit and not served.is_encoder_decoder):
        what = f"the prompt has {_count(known)} tokens, and the context length is {limit}"
        field = _prompt_field(request)
    elif (
        reserved
        and request.route is not Route.GENERATE
        and known.output > 0
        and known.prompt + known.output > limit
    ):
        what = (
            f"{known.field}={known.output} leaves room for {limit - known.output} of the prompt's "
            f"{_count(known)} tokens within max_model_len={limit}"
        )
        field = known.field
    else:
        return
    yield length.finding(
        request,
        field,
        what,
        severity=severity,
        evidence={
            "prompt_tokens": known.prompt,
            "max_tokens": known.output,
            "max_model_len": limit,
        },
    )


@request_rule(
    Declaration(
        id="request-max-tokens-cut",
        title="max_tokens is more than fits beside the prompt",
        explanation="vLLM lowers it without a word: on `/inference/v1/generate` always, on the "
        "OpenAI-compatible routes from 0.32 on. The answer then ends with `finish_reason: "
        "length` before the length that was asked for.",
        remedy="Ask for what fits; as `repair` the gate writes that number into the request.",
        severity=Severity.WARNING,
        area="request",
        gate=Gate.REQUEST,
        source="entrypoints/serve/utils/api_utils.py::get_max_tokens",
        bad=(
            RequestExample(
                '{"token_ids": [1, 2], "sampling_params": {"max_tokens": 15}}', serve=_SHORT
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1, 2], "sampling_params": {"max_tokens": 14}}', serve=_SHORT
            ),
        ),
    ),
    repair=clamp,
)
def cut(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Warn where the output that was asked for cannot be had, and vLLM answers all the same."""
    limit = served.max_model_len
    if limit is None or served.catalogue.requests.output_is_reserved is None:
        return
    if request.route is not Route.GENERATE and (
        served.catalogue.requests.output_is_reserved or request.route is not Route.COMPLETIONS
    ):
        return
    known = lengths(request, served)
    if known is None or not known.sent or known.prompt >= limit:
        return
    if request.route is not Route.GENERATE and known.output > limit:
        return
    if known.exact and known.prompt + known.output > limit:
        yield cut.finding(
            request,
            known.field,
            f"{known.field}={known.output} is more than the {limit - known.prompt} tokens that fit "
            f"beside the prompt's {known.prompt}; vLLM cuts it",
            evidence={"prompt_tokens": known.prompt, "max_model_len": limit},
        )


@request_rule(
    Declaration(
        id="request-min-tokens",
        title="min_tokens with max_tokens null must fit beside the prompt",
        explanation="Up to 0.30 `/inference/v1/generate` fills in a `max_tokens` of null after it "
        "has compared `min_tokens` with it. The engine compares again where it decodes the "
        "request, outside of any error handling: its thread for new requests ends, and the engine "
        "answers nothing any more, though `/health` is fine. 0.31 and newer refuse the request.",
        remedy="Ask for fewer `min_tokens`, or send `max_tokens`.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        versions="<0.31",
        source="v1/engine/core.py::EngineCoreProc.process_input_sockets",
        bad=(
            RequestExample(
                '{"token_ids": [1, 2], "sampling_params": {"max_tokens": null, "min_tokens": 15}}',
                serve=_SHORT,
                versions="<0.31",
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1, 2], "sampling_params": {"max_tokens": null, "min_tokens": 14}}',
                serve=_SHORT,
                versions="<0.31",
            ),
            RequestExample(
                '{"token_ids": [1, 2], "sampling_params": {"max_tokens": 20, "min_tokens": 15}}',
                note="0.29 and newer cut it",
                serve=_SHORT,
                versions="<0.31",
            ),
        ),
    ),
    fields=("min_tokens",),
)
def least(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse what would stop the engine's intake."""
    number = request.integer("min_tokens")
    if number is None or request.sent("max_tokens") is not None:
        return
    room = _room_beside_ids(request, served)
    if room is not None and number > room:
        yield least.finding(
            request,
            "min_tokens",
            f"min_tokens={number} is more than the {room} tokens that fit beside the prompt; it "
            "would end the engine",
            evidence={"min_tokens": number, "room": room},
        )


@request_rule(
    Declaration(
        id="request-min-tokens-endless",
        title="min_tokens beyond the context length never ends on 0.28",
        explanation="0.28 looks at the length of a sequence only once it has `min_tokens`. On "
        "`/inference/v1/generate`, which takes any `max_tokens`, a sequence that fills the context "
        "before is never scheduled again and never ends: its client waits, and its cache stays "
        "taken, until the client leaves.",
        remedy="Ask for no more `min_tokens` than fit beside the prompt.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        versions="<0.29",
        source="v1/core/sched/utils.py::check_stop",
        bad=(
            RequestExample(
                '{"token_ids": [1, 2], "sampling_params": {"max_tokens": 20, "min_tokens": 15}}',
                serve=_SHORT,
                versions="<0.29",
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1, 2], "sampling_params": {"max_tokens": 20, "min_tokens": 14}}',
                serve=_SHORT,
                versions="<0.29",
            ),
        ),
    ),
    fields=("min_tokens",),
)
def endless(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse what 0.28 takes and never ends."""
    most, number = request.integer("max_tokens"), request.integer("min_tokens")
    if most is None or number is None or number > most:
        return
    room = _room_beside_ids(request, served)
    if room is not None and number > room:
        yield endless.finding(
            request,
            "min_tokens",
            f"min_tokens={number} is more than the {room} tokens that fit beside the prompt; the "
            "sequence would never end",
            evidence={"min_tokens": number, "room": room},
        )


def _room_beside_ids(request: GenerationRequest, served: Served) -> int | None:
    """Give the tokens that fit beside the prompt of `/inference/v1/generate`, if any do."""
    if request.route is not Route.GENERATE or served.max_model_len is None:
        return None
    room = served.max_model_len - sum(map(len, request.prompts()))
    return room if room > 0 else None


def _count(known: _Lengths) -> str:
    return str(known.prompt) if known.exact else f"at least {known.prompt}"


def _prompt_field(request: GenerationRequest) -> str:
    if request.route is Route.GENERATE:
        return "token_ids"
    return "prompt" if request.body.get("prompt", UNSET) is not UNSET else "messages"
