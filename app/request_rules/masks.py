"""Rules of a server that returns sampling masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from msgspec import UNSET

from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import Change, RequestExample, request_rule
from app.request_rules.served import Default, Served
from app.rules.declaration import Declaration, Gate
from app.rules.registry import finding_of
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

_GREEDY_BELOW = 1e-5
_RAISED_TO = 1e-2
_SOURCE = "v1/engine/input_processor.py::InputProcessor._validate_params"
_WITH_MASKS = (
    "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs "
    "--generation-config vllm"
)
_GOOD_GENERATE = RequestExample(
    '{"token_ids": [1], "sampling_params": {"top_k": 5}}', serve=_WITH_MASKS
)
_EMPTY_500 = (
    "vLLM checks this per request, but raises a plain `ValueError` there, so that the client "
    "gets status 500 with an *empty* message (in a stream: status 200 and an error event)."
)


_UNSENT = f"missing, which {Route.GENERATE} reads as {{}}"
_MISSING = "missing, and this server's default is {}"
_NULL = "null, and this server's default is {}"


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The value of `name` that reaches the engine, and where it is from."""

    name: str
    number: float
    origin: str = ""

    @property
    def words(self) -> str:
        """How to speak of it."""
        shown = self.number if isinstance(self.number, int) else f"{self.number:g}"
        return f"`{self.name}` is {self.origin.format(shown) or shown}"


def effective(
    request: GenerationRequest, name: str, default: Default, neutral: float
) -> EffectiveValue | None:
    """Resolve a parameter as its route does; None if unknown or vLLM's own to refuse.

    `/inference/v1/generate` knows no server-side defaults and takes no null; the
    OpenAI-compatible routes take both (`to_sampling_params` of each `protocol.py`).
    """
    sent = request.sent(name)
    if sent is UNSET and request.route is Route.GENERATE:
        return EffectiveValue(name, neutral, _UNSENT)
    if sent is UNSET or (sent is None and request.route is not Route.GENERATE):
        if not default.known or default.value is None:
            return None
        return EffectiveValue(name, default.value, _MISSING if sent is UNSET else _NULL)
    number = request.integer(name) if name == "top_k" else request.number(name)
    return None if number is None else EffectiveValue(name, number)


def _samples(request: GenerationRequest, served: Served) -> bool:
    return bool(served.returns_masks) and not request.switch("use_beam_search")


@request_rule(
    Declaration(
        id="sampling-mask-temperature",
        title="temperature must be above 0 on a server that returns sampling masks",
        explanation=f"A greedy request has no distribution to replay. {_EMPTY_500} "
        "A temperature between 0 and 0.01 is raised to 0.01 and passes.",
        remedy="Send a `temperature` above 0. Almost greedy is `top_k: 1` with temperature 1.",
        severity=Severity.ERROR,
        area="sampling-mask",
        gate=Gate.REQUEST,
        source=_SOURCE,
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"temperature": 0, "top_k": 5}}',
                serve=_WITH_MASKS,
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"temperature": 1e-9, "top_k": 5}}',
                note="raised to 0.01",
                serve=_WITH_MASKS,
            ),
        ),
    )
)
def temperature(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse what is greedy after `SamplingParams.__post_init__`."""
    value = effective(request, "temperature", served.temperature, 1.0)
    if value is None or not _samples(request, served) or not value.number <= 0:
        return
    engine = served.catalogue.engine_message("temperature")
    yield temperature.finding(
        request,
        "temperature",
        f"{engine}: {value.words}. Send a temperature above 0.",
        engine_message=engine,
        evidence={"temperature": value.number},
    )


def put_top_k(request: GenerationRequest, served: Served) -> Change | None:
    """Give the top_k of the settings, at most the logprobs that the server returns."""
    del request
    most = served.max_logprobs
    wanted = served.limits.repair_top_k
    return Change("top_k", min(wanted, most) if most is not None and most > 0 else wanted)


@request_rule(
    Declaration(
        id="sampling-mask-top-k",
        title="top_k must be above 0 on a server that returns sampling masks",
        explanation="Without top_k the mask of each token may be the whole vocabulary. "
        f"{_EMPTY_500} `/inference/v1/generate` reads a missing `top_k` as 0; the "
        "OpenAI-compatible routes take it from the generation config.",
        remedy="Send `top_k`, at most the number of logprobs you ask for; as `repair` the gate "
        "puts in `VLLM_ADMISSION_REQUEST_REPAIR_TOP_K`.",
        severity=Severity.ERROR,
        area="sampling-mask",
        gate=Gate.REQUEST,
        source=_SOURCE,
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"temperature": 1}}', serve=_WITH_MASKS
            ),
            RequestExample(
                '{"prompt": "a", "top_k": -1}', route=Route.COMPLETIONS, serve=_WITH_MASKS
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"top_k": 5}}', serve=_WITH_MASKS
            ),
            RequestExample(
                '{"prompt": "a"}',
                note="the model's generation config, which we do not see, may set it",
                route=Route.COMPLETIONS,
                serve="vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs",
            ),
        ),
    ),
    repair=put_top_k,
)
def top_k(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse top_k -1 and 0, given or by default."""
    value = effective(request, "top_k", served.top_k, 0)
    if value is None or not _samples(request, served) or value.number > 0:
        return
    engine = served.catalogue.engine_message("top_k")
    yield top_k.finding(
        request,
        "top_k",
        f"{engine}: {value.words}. Send top_k above 0, at most the logprobs you ask for.",
        engine_message=engine,
        evidence={"top_k": value.number},
    )


@request_rule(
    Declaration(
        id="sampling-mask-beam-search",
        title="No beam search on a server that returns sampling masks",
        explanation="A beam search makes its own sampling parameters, without `top_k`, which such "
        f"a server refuses whatever the request says. {_EMPTY_500}",
        remedy="Send the request without `use_beam_search`, or to a server without masks.",
        severity=Severity.ERROR,
        area="sampling-mask",
        gate=Gate.REQUEST,
        source="entrypoints/generate/beam_search/online.py::BeamSearchOnlineMixin.beam_search",
        bad=(
            RequestExample(
                '{"prompt": "a", "use_beam_search": true, "top_k": 5}',
                route=Route.COMPLETIONS,
                serve=_WITH_MASKS,
            ),
        ),
        good=(
            RequestExample(
                '{"prompt": "a", "use_beam_search": true, "top_k": 5}',
                route=Route.COMPLETIONS,
                serve="vllm serve m",
            ),
        ),
    ),
    fields=("use_beam_search",),
)
def beam_search(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse what asks for at least one token of a beam search."""
    if not served.returns_masks or not request.switch("use_beam_search"):
        return
    if request.integer("max_tokens") == 0:  # which vLLM answers or refuses by itself
        return
    engine = served.catalogue.engine_message("top_k")
    yield beam_search.finding(
        request,
        "use_beam_search",
        f"{engine}: a beam search has none",
        engine_message=engine,
    )


@request_rule(
    Declaration(
        id="sampling-mask-route",
        title="Only /inference/v1/generate returns sampling masks",
        explanation="The engine computes the masks, and their limits on temperature and top_k "
        "apply, but no OpenAI-compatible route puts them into its response.",
        remedy="Use `/inference/v1/generate` for rollouts that are to be replayed.",
        severity=Severity.WARNING,
        area="sampling-mask",
        gate=Gate.REQUEST,
        source="entrypoints/openai/completion/protocol.py::CompletionResponseChoice",
        bad=(
            RequestExample(
                '{"prompt": "a", "top_k": 5}', route=Route.COMPLETIONS, serve=_WITH_MASKS
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"top_k": 5}}', serve=_WITH_MASKS
            ),
        ),
    )
)
def route(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Warn on the OpenAI-compatible routes."""
    if served.returns_masks and request.route is not Route.GENERATE:
        yield _no_masks(request.route)


@cache
def _no_masks(on: Route) -> Finding:
    """The same for every request of a route, of which a server for chats gets no other."""
    return finding_of(
        route.declaration,
        f"{on} returns no sampling masks; {Route.GENERATE} does",
        location=Location(source="body", pointer="/"),
    )


@request_rule(
    Declaration(
        id="sampling-mask-stream",
        title="Streams carry no sampling masks before vLLM 0.32",
        explanation="The chunks have the field, but it is always null.",
        remedy="Ask without `stream`, or upgrade to 0.32.",
        severity=Severity.WARNING,
        area="sampling-mask",
        gate=Gate.REQUEST,
        versions="<0.32",
        source="entrypoints/scale_out/token_in_token_out/serving.py::"
        "ServingTokens.serve_tokens_stream_generator",
        bad=(
            RequestExample(
                '{"token_ids": [1], "stream": true, "sampling_params": {"top_k": 5}}',
                versions="<0.32",
                serve=_WITH_MASKS,
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"top_k": 5}}', serve=_WITH_MASKS
            ),
        ),
    ),
    fields=("stream",),
)
def stream(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Warn where the version's chunks have null masks."""
    if (
        served.returns_masks
        and request.stream
        and request.route is Route.GENERATE
        and not served.semantics.masks_in_streams
    ):
        yield stream.finding(
            request,
            "stream",
            f"vLLM {served.version} sends sampling_mask: null in every stream chunk; "
            "ask without stream",
        )
