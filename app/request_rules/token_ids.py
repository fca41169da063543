"""Rules about token ids: those that shape the sampling, and those of the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

# Which of `SamplingParams.verify`'s checks compares a field with the model's vocabulary.
_CHECKED: Final = {
    "logit_bias": "_validate_logit_bias",
    "stop_token_ids": "_validate_stop_token_ids",
    "logprob_token_ids": "_validate_logprobs",
    "trace_decode_token_ids": "_validate_trace_replay",
}
_MODEL = {"vocab_size": 1000}
_SHOWN: Final = 10


def _ids(request: GenerationRequest, name: str) -> list[int]:
    return request.token_keys(name) if name == "logit_bias" else request.integers(name)


@request_rule(
    Declaration(
        id="request-vocabulary",
        title="Token ids must be in the vocabulary",
        explanation="vLLM compares the ids in `logit_bias`, `logprob_token_ids`, "
        "`trace_decode_token_ids`, and from 0.29 on in `stop_token_ids` and `allowed_token_ids`, "
        "with the model's `vocab_size`. The rule needs the model's config.json.",
        remedy="Send ids from 0 to `vocab_size` - 1.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="sampling_params.py::SamplingParams.verify",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"logit_bias": {"1000": 1}}}',
                model_config=_MODEL,
            ),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"stop_token_ids": [-1]}}',
                versions=">=0.29",
                model_config=_MODEL,
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"logit_bias": {"999": 1}}}',
                model_config=_MODEL,
            ),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"logit_bias": {"1000": 1}}}',
                note="the vocabulary is not known",
            ),
        ),
    ),
    fields=(*_CHECKED, "allowed_token_ids"),
)
def vocabulary(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse ids below 0 or above the vocabulary."""
    size = served.vocabulary
    if size is None or request.switch("use_beam_search"):
        return
    checks = served.catalogue.requests.checks
    for name, check in _CHECKED.items():
        if check in checks and request.has(name):
            yield from _outside(request, name, size)
    # 0.28 compares these with the tokenizer's length instead.
    if "_validate_stop_token_ids" in checks and request.has("allowed_token_ids"):
        yield from _outside(request, "allowed_token_ids", size)


def _outside(request: GenerationRequest, name: str, size: int) -> Iterator[Finding]:
    ids = _ids(request, name)
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = list(islice((token for token in ids if not 0 <= token < size), _SHOWN))
        yield vocabulary.finding(
            request,
            name,
            f"token id {wrong[0]} in {name} is not in the vocabulary of {size} tokens",
            evidence={"tokens": wrong, "vocab_size": size},
        )


@request_rule(
    Declaration(
        id="request-prompt-vocabulary",
        title="Prompt token ids above the model's vocabulary",
        explanation="vLLM refuses ids that neither the model nor the tokenizer has. The gate does "
        "not know the tokenizer, which may have more tokens than the model, so this is a "
        "warning.",
        remedy="Check that the prompt was tokenised for this model.",
        severity=Severity.WARNING,
        area="request",
        gate=Gate.REQUEST,
        source="renderers/base.py::BaseRenderer.validate_token_ids",
        bad=(RequestExample('{"token_ids": [1000], "sampling_params": {}}', model_config=_MODEL),),
        good=(
            RequestExample('{"token_ids": [999], "sampling_params": {}}', model_config=_MODEL),
            RequestExample('{"token_ids": [1000], "sampling_params": {}}'),
        ),
    ),
    fields=("token_ids", "prompt"),
)
def prompt(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Warn of ids that the model has no embedding for."""
    if served.vocabulary is None:
        return
    largest = max((max(ids) for ids in request.prompts() if ids), default=0)
    if largest >= served.vocabulary:
        yield prompt.finding(
            request,
            "token_ids" if request.route is Route.GENERATE else "prompt",
            f"token id {largest} is above the model's vocabulary of {served.vocabulary} tokens",
            evidence={"token": largest, "vocab_size": served.vocabulary},
        )
