"""Rules about how many logprobs may be asked for.

vLLM refuses these itself with 400; answering here saves the tokenisation and the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

# Members that `counts` reads a number from.
COUNTED = ("logprobs", "top_logprobs", "prompt_logprobs")
_OUTPUT_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class Count:
    """How many logprobs reach the engine, of which kind, and from which field."""

    kind: str
    field: str
    number: int


def counts(request: GenerationRequest) -> list[Count]:
    """Give the counts that reach `SamplingParams`, as each route derives them.

    Source: `to_sampling_params` in the `protocol.py` of each route.
    """
    known: list[Count] | None = request.memo.get("logprob counts")
    if known is None:
        known = request.memo["logprob counts"] = list(_counts(request))
    return known


def _counts(request: GenerationRequest) -> Iterator[Count]:
    if request.switch("use_beam_search"):
        return
    field: str | None = "logprobs"
    match request.route:
        case Route.COMPLETIONS:
            field = None if request.has("logprob_token_ids") else "logprobs"
        case Route.CHAT | Route.CHAT_BATCH:
            wanted = request.switch("logprobs") and not request.has("logprob_token_ids")
            field = "top_logprobs" if wanted else None
        case Route.RESPONSES:
            include = request.sent("include")
            wanted = isinstance(include, list) and _OUTPUT_LOGPROBS in include
            field = "top_logprobs" if wanted else None
        case Route.MESSAGES:
            return
        case Route.GENERATE:
            pass
    number = None if field is None else request.integer(field)
    if field is not None and number is not None:
        yield Count("sample", field, number)
    if request.route is Route.RESPONSES:
        return
    if request.route is Route.COMPLETIONS and request.switch("echo"):
        field = "prompt_logprobs" if request.has("prompt_logprobs") else "logprobs"
    else:
        field = "prompt_logprobs"
    number = request.integer(field)
    if number is not None:
        yield Count("prompt", field, number)


@request_rule(
    Declaration(
        id="request-logprobs-range",
        title="A number of logprobs is at least 0, or -1 for all",
        explanation="Every vLLM version refuses other negative numbers.",
        remedy="Send a number from 0 up to the server's `--max-logprobs`, or -1 for the whole "
        "vocabulary where that is allowed.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="sampling_params.py::SamplingParams._verify_args",
        bad=(RequestExample('{"token_ids": [1], "sampling_params": {"logprobs": -2}}'),),
        good=(RequestExample('{"token_ids": [1], "sampling_params": {"logprobs": 0}}'),),
    ),
    fields=COUNTED,
)
def range_(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse numbers below -1."""
    del served
    for count in counts(request):
        if count.number < -1:
            engine = f"{count.field} must be non-negative or -1, got {count.number}."
            yield range_.finding(
                request,
                count.field,
                engine,
                engine_message=engine,
                evidence={count.field: count.number},
            )


@request_rule(
    Declaration(
        id="request-logprobs-limit",
        title="No more logprobs than the server's --max-logprobs",
        explanation="`--max-logprobs` is 20 unless set; -1 allows the whole vocabulary. To see "
        "the logprob of every member of a sampling mask, it must be at least top_k.",
        remedy="Ask for fewer, or restart the server with a higher `--max-logprobs`.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="sampling_params.py::SamplingParams._validate_logprobs",
        bad=(
            RequestExample('{"token_ids": [1], "sampling_params": {"logprobs": 21}}'),
            RequestExample(
                '{"messages": [], "logprobs": true, "top_logprobs": 6}',
                route=Route.CHAT,
                serve="vllm serve m --max-logprobs 5",
            ),
        ),
        good=(
            RequestExample('{"token_ids": [1], "sampling_params": {"logprobs": 20}}'),
            RequestExample(
                '{"messages": [], "top_logprobs": 6}',
                note="without `logprobs: true` vLLM has another complaint",
                route=Route.CHAT,
                serve="vllm serve m --max-logprobs 5",
            ),
        ),
    ),
    fields=COUNTED,
)
def limit(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse more than `--max-logprobs`; -1 counts as the vocabulary, if its size is known."""
    allowed = served.max_logprobs if served.max_logprobs != -1 else served.vocabulary
    if allowed is None:
        return
    for count in counts(request):
        number = served.vocabulary if count.number == -1 else count.number
        if number is None or number <= allowed:
            continue
        engine = (
            f"Requested {count.kind} logprobs of {number}, "
            f"which is greater than max allowed: {allowed}"
        )
        yield limit.finding(
            request,
            count.field,
            f"{engine} (--max-logprobs)",
            engine_message=engine,
            evidence={count.field: count.number, "max_logprobs": served.max_logprobs},
        )


@request_rule(
    Declaration(
        id="request-logprobs-all",
        title="/v1/completions of 0.28 does not take logprobs: -1",
        explanation="The other routes and newer versions take -1 for the whole vocabulary.",
        remedy="Send the number of logprobs, or use `/inference/v1/generate`.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        versions="<0.29",
        source="entrypoints/openai/completion/protocol.py::CompletionRequest.check_logprobs",
        bad=(
            RequestExample(
                '{"prompt": "a", "logprobs": -1}',
                route=Route.COMPLETIONS,
                versions="<0.29",
                serve="vllm serve m --max-logprobs -1",
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"logprobs": -1}}',
                versions="<0.29",
                serve="vllm serve m --max-logprobs -1",
            ),
        ),
    ),
    fields=("logprobs",),
)
def everything(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse -1 on that route."""
    del served
    if request.route is Route.COMPLETIONS and request.number("logprobs") == -1:
        engine = "`logprobs` must be a positive value."
        yield everything.finding(request, "logprobs", engine, engine_message=engine)
