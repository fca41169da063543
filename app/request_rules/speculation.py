"""The rule about parameters that do not go with speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator

from app.request_rules.masks import effective
from app.request_rules.request import GenerationRequest
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

_GREEDY_BELOW = 1e-5
_SMALLEST = 1e-5
_CHECK = "_validate_spec_decode"
_SERVE = (
    "vllm serve m --generation-config vllm "
    """--speculative-config '{"method": "ngram", "num_speculative_tokens": 2}'"""
)


@request_rule(
    Declaration(
        id="request-speculation",
        title="No min_p and no logit_bias with speculative decoding",
        explanation="vLLM refuses both on a server that speculates. A `min_p` of at most 1e-5, "
        "and that of a greedy request, counts as none.",
        remedy="Send the request without them, or to a server that does not speculate.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="sampling_params.py::SamplingParams._validate_spec_decode",
        bad=(
            RequestExample('{"token_ids": [1], "sampling_params": {"min_p": 0.1}}', serve=_SERVE),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"logit_bias": {"1": 1}}}', serve=_SERVE
            ),
        ),
        good=(
            RequestExample('{"token_ids": [1], "sampling_params": {"min_p": 0.1}}'),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"min_p": 0.1, "temperature": 0}}',
                serve=_SERVE,
            ),
        ),
    )
)
def parameters(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse what `_validate_spec_decode` does."""
    if not served.speculates or request.switch("use_beam_search"):
        return
    if _CHECK not in served.catalogue.requests.checks:
        return
    biases = request.sent("logit_bias")
    if isinstance(biases, dict) and biases:
        yield _finding(request, "logit_bias", "logit_bias is sent")
    value = effective(request, "min_p", served.min_p, 0.0)
    heat = effective(request, "temperature", served.temperature, 1.0)
    if value is None or heat is None or heat.number < _GREEDY_BELOW or value.number > 1:
        return
    if value.number > _SMALLEST:
        yield _finding(request, "min_p", value.words)


def _finding(request: GenerationRequest, name: str, words: str) -> Finding:
    engine = (
        "The min_p and logit_bias sampling parameters are not yet supported with speculative "
        "decoding."
    )
    finding: Finding = parameters.finding(
        request,
        name,
        f"{words}, which does not go with speculative decoding",
        engine_message=engine,
    )
    return finding
