"""What `/v1/completions` and `/v1/chat/completions` share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from app.simulator.engine import Engine
from app.simulator.errors import InvalidRequest, NotSimulated
from app.simulator.sampling_params import FINAL_ONLY, SamplingParams
from app.simulator.sequence import Step
from app.simulator.settings import SimulatorSettings
from app.simulator.wire.answer import usage, without_nulls
from app.simulator.wire.dialect import Dialect
from app.simulator.wire.requests import ChatCompletionRequest, CompletionRequest

_DEFAULTED = ("repetition_penalty", "temperature", "top_p", "top_k", "min_p")
_COPIED = (
    *("seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "prompt_logprobs"),
    *("include_stop_str_in_output", "skip_special_tokens", "allowed_token_ids", "bad_words"),
    *("presence_penalty", "frequency_penalty", "n"),
)


def check_simulated(request: CompletionRequest | ChatCompletionRequest, dialect: Dialect) -> None:
    """Refuse, in so many words, what only real vLLM can do.

    Raises:
        NotSimulated: structured outputs, beam search and the like.
    """
    given = {**(request.model_extra or {}), "structured_outputs": request.structured_outputs}
    for name in sorted(dialect.unsimulated):
        if given.get(name) is not None:
            raise NotSimulated(f"The simulated backend does not support {name}.")
    if (request.response_format or {}).get("type", "text") != "text":
        raise NotSimulated("The simulated backend does not support response_format.")
    if request.use_beam_search:
        raise NotSimulated("The simulated backend does not support beam search.")


def sampling(
    request: CompletionRequest | ChatCompletionRequest,
    settings: SimulatorSettings,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Turn a request into sampling parameters, server-side defaults where it is silent.

    `logit_bias` is limited to ±100 here, as vLLM does on these routes only.

    Raises:
        InvalidRequest: a value is out of range.
    """
    given: dict[str, Any] = {}
    for name in (*_DEFAULTED, *_COPIED):
        value = getattr(request, name)
        if value is None and name in _DEFAULTED:
            value = settings.sampling_defaults.get(name)
        if value is not None:
            given[name] = value
    if prompt_logprobs is not None:
        given["prompt_logprobs"] = prompt_logprobs
    if request.logit_bias:
        given["logit_bias"] = _bias(request.logit_bias)
    ids = request.logprob_token_ids or None
    return SamplingParams.parse(
        {
            **given,
            "logprobs": None if ids else logprobs,
            "logprob_token_ids": ids,
            "max_tokens": max_tokens,
            "output_kind": FINAL_ONLY,
        }
    )


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    """Read a `logit_bias`, each limited to ±100; these routes take the ids as text."""
    words = [token for token in given if not token.strip().lstrip("+-").isdecimal()]
    if words:
        raise InvalidRequest(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {words}",
            "logit_bias",
            words,
        )
    return {int(token): min(100.0, max(-100.0, bias)) for token, bias in given.items()}


@dataclass(frozen=True, slots=True)
class UsageChoice:
    """What a stream's client asked to be told about usage."""

    at_end: bool
    in_chunks: bool

    @classmethod
    def of(cls, request: CompletionRequest | ChatCompletionRequest) -> UsageChoice:
        """Read `stream_options`."""
        options = request.stream_options
        at_end = options is not None and bool(options.include_usage)
        return cls(at_end, at_end and bool(options and options.continuous_usage_stats))


def final_usage(prompt: int, generated: int, settings: SimulatorSettings) -> dict[str, Any]:
    """Render the counts of a stream's last chunk, which has no nulls."""
    return without_nulls(usage(prompt, generated, settings))


def as_ids(request: CompletionRequest | ChatCompletionRequest, settings: SimulatorSettings) -> bool:
    """Whether tokens are to be named `token_id:N`."""
    asked = request.return_tokens_as_token_ids
    return settings.return_tokens_as_token_ids if asked is None else asked


async def in_turn(
    engine: Engine, requests: Sequence[tuple[Sequence[int], SamplingParams]]
) -> AsyncGenerator[tuple[int, Step]]:
    """Run several prompts side by side; gives (number of the prompt, step)."""
    async with AsyncExitStack() as stack:
        running: Mapping[int, AsyncIterator[Step]] = {
            number: await stack.enter_async_context(aclosing(engine.generate(prompt, params)))
            for number, (prompt, params) in enumerate(requests)
        }
        waiting = dict(running)
        while waiting:
            for number, steps in list(waiting.items()):
                step = await anext(steps, None)
                if step is None:
                    del waiting[number]
                else:
                    yield number, step
