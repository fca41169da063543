"""The logits pipeline and the draw of Model Runner V2, for one row.

The order is vLLM's: allowed ids, bias, minimum length, penalties, bad words, temperature,
min-p, top-k, top-p. The sampling mask is what is finite afterwards, the log-probabilities are
those of the same row (or of the raw one, by `logprobs_mode`), and the token is the argmax of
the row plus the seeded noise.

Source: `vllm/v1/worker/gpu/sample/sampler.py::Sampler.apply_sampling_params` and the modules
beside it; `vllm/v1/sample/ops/topk_topp_sampler.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from app.catalogue.semantics import DrawGenerator
from app.replay.draw import gumbel_noise
from app.simulator.sampling_params import SamplingParams

Row = NDArray[np.float32]
"""Logits over the vocabulary, (vocabulary,), float32."""

_NOTHING = np.float32(-np.inf)
_RANK_BLOCK = 8192


class TopKTies(StrEnum):
    """What happens to values that tie with the k-th largest.

    Up to 0.29 a step of fewer than 8 rows sorts and keeps them all; from 0.30 on exactly k
    are kept, the lowest ids first.
    """

    KEEP_ALL = "keep_all"
    LOWEST_IDS = "lowest_ids"


class LogprobsMode(StrEnum):
    """`--logprobs-mode`: which row the reported numbers come from, and which numbers."""

    RAW_LOGPROBS = "raw_logprobs"
    PROCESSED_LOGPROBS = "processed_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGITS = "processed_logits"

    @property
    def processed(self) -> bool:
        """Whether the row after the pipeline is meant."""
        return self in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)

    @property
    def normalised(self) -> bool:
        """Whether log-probabilities are meant, as opposed to logits."""
        return self in (LogprobsMode.RAW_LOGPROBS, LogprobsMode.PROCESSED_LOGPROBS)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token with its log-probability (or logit) and its rank in the row, 1 the likeliest."""

    token: int
    logprob: float
    rank: int


def process(
    logits: Row,
    params: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    ties: TopKTies,
) -> Row:
    """Run the pipeline over one row; `logits` is left as it is.

    Args:
        logits: the model's row.
        params: normalised sampling parameters.
        prompt: token ids of the prompt.
        output: token ids generated so far.
        ties: what top-k does at its boundary.
    """
    row = logits.copy()
    if params.allowed_token_ids is not None:
        row = keep_only(row, params.allowed_token_ids)
    for token, bias in params.logit_bias.items():
        row[token] += np.float32(bias)
    if len(output) < params.min_tokens:
        row[[token for token in params.all_stop_token_ids if token < row.size]] = _NOTHING
    if params.penalised:
        penalise(row, params, prompt, output)
    for sequence in params.bad_sequences:
        prefix = len(sequence) - 1
        if len(output) >= prefix and tuple(output[len(output) - prefix :]) == sequence[:-1]:
            row[sequence[-1]] = _NOTHING
    if params.greedy:
        return row
    if params.temperature != 1:
        row /= np.float32(params.temperature)
    if params.min_p > 0:
        row[row < row.max() + np.log(np.float32(params.min_p))] = _NOTHING
    if 0 < params.top_k < row.size:
        row = top_k(row, params.top_k, ties)
    if params.top_p < 1:
        row = top_p(row, params.top_p)
    return row


def keep_only(row: Row, tokens: Sequence[int]) -> Row:
    """Forbid everything but `tokens`."""
    kept = np.full_like(row, _NOTHING)
    index = list(tokens)
    kept[index] = row[index]
    return kept


def penalise(
    row: Row, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> None:
    """Apply repetition, frequency and presence penalties in place."""
    seen = list({*prompt, *output})
    values = row[seen]
    repetition = np.float32(params.repetition_penalty)
    row[seen] = np.where(values > 0, values / repetition, values * repetition)
    counts = Counter(output)
    produced = list(counts)
    row[produced] -= np.float32(params.frequency_penalty) * np.array(
        list(counts.values()), dtype=np.float32
    )
    row[produced] -= np.float32(params.presence_penalty)


def descending(row: Row) -> NDArray[np.intp]:
    """Give the ids from the largest value to the smallest, ties by id."""
    return np.argsort(-row, kind="stable")


def top_k(row: Row, k: int, ties: TopKTies) -> Row:
    """Keep the k largest values; `ties` says what happens at the boundary."""
    if ties is TopKTies.LOWEST_IDS:
        return keep_only(row, descending(row)[:k].tolist())
    threshold = np.partition(row, row.size - k)[row.size - k]
    return np.where(row < threshold, _NOTHING, row)


def top_p(row: Row, p: float) -> Row:
    """Keep the fewest likeliest tokens whose probability reaches p; at least one."""
    finite = np.flatnonzero(row > _NOTHING)
    order = finite[descending(row[finite])]
    with np.errstate(invalid="ignore"):  # an infinite bias: inf - inf
        weights = np.exp(row[order] - row[order[:1]])
        before = np.cumsum(weights, dtype=np.float32) - weights
    kept = before < np.float32(p) * weights.sum(dtype=np.float32)
    kept[:1] = True
    return keep_only(row, order[kept].tolist())


def support(row: Row) -> NDArray[np.int64]:
    """Give the sampling mask: the ids with finite logits, ascending."""
    return np.flatnonzero(np.isfinite(row))


def draw(
    row: Row, *, generator: DrawGenerator, seed: int, position: int, fp64: bool = False
) -> int:
    """Sample one token by Gumbel-max; of equal sums the lowest id wins.

    Source: `vllm/v1/worker/gpu/sample/gumbel.py`.

    Args:
        row: the processed row; -inf is never drawn unless nothing else is left.
        generator: of the version.
        seed: of the sequence.
        position: of the last input token: prompt length - 1 + tokens generated.
        fp64: whether noise and sum are double precision.
    """
    tokens = np.flatnonzero(row > _NOTHING)
    if not tokens.size:
        return 0
    noise = gumbel_noise(
        generator,
        seed=seed,
        positions=np.full(tokens.size, position, dtype=np.int64),
        token_ids=tokens,
        fp64=fp64,
    )
    return int(tokens[np.argmax(row[tokens] + noise)])


def scores(row: Row, *, normalised: bool) -> Row:
    """Give log-softmax of the row, or the row itself."""
    if not normalised:
        return row
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = row - row.max()
        normalised_row: Row = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
        return normalised_row


def rank(row: Row, token: int) -> int:
    """Give how many logits are no smaller than the token's; of -inf, with vLLM's padding.

    Source: `vllm/v1/worker/gpu/sample/logprob.py::_ranks_kernel`, which works in blocks of
    8192 whose surplus lanes count as -inf.
    """
    if row[token] == _NOTHING:
        return _RANK_BLOCK * -(-row.size // _RANK_BLOCK)
    return int(np.count_nonzero(row >= row[token]))


def candidates(
    row: Row, token: int, count: int, *, normalised: bool, chosen: Sequence[int] | None = None
) -> list[Candidate]:
    """Give the sampled token first, then the `count` likeliest, or the `chosen` ids.

    A token that is in both keeps the first place and takes the rank of the second, as vLLM's
    dictionary does (`vllm/logprobs.py::append_logprobs_for_next_position`). The rank of a
    `chosen` id is its number in the request.
    """
    values = scores(row, normalised=normalised)
    ranks = {token: rank(row, token)}
    others = descending(row)[:count].tolist() if chosen is None else chosen
    ranks.update({other: place for place, other in enumerate(others, start=1)})
    return [Candidate(other, float(values[other]), place) for other, place in ranks.items()]
