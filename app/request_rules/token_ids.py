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
_INT32: Final = 2**31


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


@request_rule(
    Declaration(
        id="request-prompt-range",
        title="Without a tokenizer vLLM takes any prompt id, and dies of those the model has not",
        explanation="`--tokens-only` and `--skip-tokenizer-init` leave out the check of prompt ids "
        "up to 0.32, and in 0.28 that of `allowed_token_ids`. An id beyond the vocabulary is read "
        "beside the table of embeddings, or fits no table of 32 bits, which ends the engine.",
        remedy="Send ids from 0 to `vocab_size` - 1.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        versions="<0.33",
        source="renderers/base.py::BaseRenderer.validate_token_ids",
        bad=(
            RequestExample(
                '{"token_ids": [1000], "sampling_params": {}}',
                serve="vllm serve m --tokens-only",
                model_config=_MODEL,
                versions="<0.33",
            ),
            RequestExample(
                '{"token_ids": [2147483648], "sampling_params": {}}',
                serve="vllm serve m --skip-tokenizer-init",
                versions="<0.33",
            ),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"allowed_token_ids": [1000]}}',
                serve="vllm serve m --tokens-only",
                model_config=_MODEL,
                versions="<0.29",
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [999], "sampling_params": {}}',
                serve="vllm serve m --tokens-only",
                model_config=_MODEL,
                versions="<0.33",
            ),
            RequestExample(
                '{"token_ids": [1000], "sampling_params": {}}',
                note="the tokenizer may have more tokens than the model",
                model_config=_MODEL,
                versions="<0.33",
            ),
        ),
    ),
    fields=("token_ids", "prompt", "allowed_token_ids"),
)
def prompt_range(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse ids that nobody else checks."""
    if served.has_tokenizer is not False:
        return
    size = served.vocabulary or _INT32
    largest = max((max(ids) for ids in request.prompts() if ids), default=0)
    if largest >= size:
        name = "token_ids" if request.route is Route.GENERATE else "prompt"
        yield _unchecked(request, name, largest, size)
    if "_validate_stop_token_ids" not in served.catalogue.requests.checks:
        for token in request.integers("allowed_token_ids"):
            if not 0 <= token < size:
                yield _unchecked(request, "allowed_token_ids", token, size)
                return


def _unchecked(request: GenerationRequest, name: str, token: int, size: int) -> Finding:
    finding: Finding = prompt_range.finding(
        request,
        name,
        f"token id {token} in {name} must be from 0 to {size - 1} on this server, which has no "
        "tokenizer to check it with; it would end the engine",
        evidence={"token": token, "limit": size},
    )
    return finding
