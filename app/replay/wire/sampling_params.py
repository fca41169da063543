"""The request's sampling parameters, as vLLM takes them.

Source: `sampling_params.py::SamplingParams` and its `__post_init__` (0.28 to 0.33 agree on
what is used here).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

_SMALLEST_TEMPERATURE = 1e-2
_GREEDY_BELOW = 1e-5


class SamplingParamsBody(msgspec.Struct, gc=False):
    """The members that the replay reads, as sent; null means the default."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    logprobs: int | bool | None = None
    logprob_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    thinking_token_budget: int | None = None
    trace_decode_token_ids: list[int] | None = None
    watermarking: bool | None = None
    structured_outputs: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """Sampling parameters after vLLM's own normalisation.

    Attributes:
        n: choices asked for.
        temperature: raised to 0.01 where it was lower and not greedy.
        top_p, min_p: 1.0 and 0.0 when greedy, as vLLM resets them.
        top_k: 0 when it does not bound the mask.
        seed: None when absent or -1.
        logprobs: candidates a token; -1 for the whole vocabulary, None for no logprobs.
        logprob_token_ids: candidates asked for by id, which are not the most likely ones.
        largest_bias: largest absolute finite logit bias, 0.0 without any.
        infinite_bias: whether a logit bias is not finite.
        presence_penalty, frequency_penalty, repetition_penalty: as in vLLM.
        thinking_budget: whether tokens may be forced by a thinking budget.
        forced_tokens: whether `trace_decode_token_ids` asks for a given sequence.
        watermarking: whether the request lets the server's watermark act.
        max_tokens: most tokens of a choice; None for as many as the context holds.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    largest_bias: float = 0.0
    infinite_bias: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    thinking_budget: bool = False
    forced_tokens: bool = False
    watermarking: bool = True
    max_tokens: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether tokens are the most likely ones instead of drawn."""
        return self.temperature < _GREEDY_BELOW


def normalise(body: SamplingParamsBody) -> SamplingRequest:
    """Do to the parameters what vLLM does before it uses them."""
    temperature = 1.0 if body.temperature is None else body.temperature
    # In vLLM the raise comes first, so only zero itself is greedy in the end.
    if 0 < temperature < _SMALLEST_TEMPERATURE:
        temperature = _SMALLEST_TEMPERATURE
    greedy = temperature < _GREEDY_BELOW
    biases = [abs(bias) for bias in (body.logit_bias or {}).values()]
    finite = [bias for bias in biases if bias < float("inf")]
    return SamplingRequest(
        n=1 if body.n is None else body.n,
        temperature=temperature,
        top_p=1.0 if greedy or body.top_p is None else body.top_p,
        top_k=0 if greedy or body.top_k is None else max(body.top_k, 0),
        min_p=0.0 if greedy or body.min_p is None else body.min_p,
        seed=None if body.seed == -1 else body.seed,
        logprobs=int(body.logprobs) if body.logprobs is not None else None,
        logprob_token_ids=tuple(body.logprob_token_ids or ()),
        largest_bias=max(finite, default=0.0),
        infinite_bias=len(finite) < len(biases),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        thinking_budget=body.thinking_token_budget is not None,
        forced_tokens=body.trace_decode_token_ids is not None,
        watermarking=body.watermarking is not False,
        max_tokens=body.max_tokens,
    )
