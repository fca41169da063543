"""Sampling parameters: defaults, normalisation and verification as in vLLM.

Source: `vllm/sampling_params.py`, `SamplingParams.__post_init__`, `_verify_args`, `verify`.
The texts are vLLM's, so that a client cannot tell the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from app.simulator.errors import EngineRefusal, InvalidRequest
from app.simulator.tokenizer import END_TOKEN, encode

GREEDY_BELOW = 1e-5
LEAST_TEMPERATURE = 0.01
MAX_SEQUENCES = 16384  # VLLM_MAX_N_SEQUENCES
MAX_LOGPROB_TOKEN_IDS = 128
CUMULATIVE, DELTA, FINAL_ONLY = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of one request; the meaning of each is vLLM's.

    Build with `parse`, which normalises; the constructor takes the values as they are.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: int = CUMULATIVE
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Normalise and check what a client gave; unknown names are ignored, as vLLM does.

        Raises:
            InvalidRequest: a value is out of range.
        """
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in given.items() if name in known}
        stop = values.get("stop")
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop or ())
        for name in ("stop_token_ids", "bad_words"):
            values[name] = tuple(dict.fromkeys(values.get(name) or ()))
        for name in ("logprob_token_ids", "allowed_token_ids"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        values["logit_bias"] = dict(values.get("logit_bias") or {})
        params = cls(**values)
        if params.seed == -1:
            params = replace(params, seed=None)
        if 0 < params.temperature < LEAST_TEMPERATURE:
            params = replace(params, temperature=LEAST_TEMPERATURE)
        params._check_ranges()
        if params.greedy:
            params = replace(params, top_p=1.0, top_k=0, min_p=0.0)
            if params.n > 1:
                raise InvalidRequest(f"n must be 1 when using greedy sampling, got {params.n}.")
        return params

    @property
    def greedy(self) -> bool:
        """Whether the temperature means no sampling."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether any of the three penalties is on."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """The ids that `min_tokens` forbids: the stop ids and the end token."""
        return frozenset((*self.stop_token_ids, END_TOKEN))

    @property
    def bad_sequences(self) -> tuple[tuple[int, ...], ...]:
        """Bad words as token sequences, alone and after a space where that is one token."""
        sequences: list[tuple[int, ...]] = []
        for word in self.bad_words:
            plain = tuple(encode(word.lstrip()))
            sequences.append(plain)
            spaced = tuple(encode(" " + word.lstrip()))
            if spaced[0] != plain[0] and len(spaced) == len(plain):
                sequences.append(spaced)
        return tuple(sequences)

    def _check_ranges(self) -> None:
        if self.n < 1:
            raise InvalidRequest(f"n must be at least 1, got {self.n}.")
        if self.n > MAX_SEQUENCES:
            raise InvalidRequest(
                f"n must be at most {MAX_SEQUENCES}, got {self.n}. "
                "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
            )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -2 <= value <= 2:
                raise InvalidRequest(f"{name} must be in [-2, 2], got {value}.")
        if not math.isfinite(self.repetition_penalty):
            raise InvalidRequest(
                f"repetition_penalty must be a finite number, got {self.repetition_penalty}."
            )
        if self.repetition_penalty <= 0:
            raise InvalidRequest(
                f"repetition_penalty must be greater than zero, got {self.repetition_penalty}."
            )
        self._check_temperature()
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(f"top_p must be in (0, 1], got {self.top_p}.", "top_p", self.top_p)
        if self.top_k < -1:
            raise InvalidRequest(f"top_k must be 0 (disable), or at least 1, got {self.top_k}.")
        if not 0 <= self.min_p <= 1:
            raise InvalidRequest(f"min_p must be in [0, 1], got {self.min_p}.")
        self._check_lengths()
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and value < -1:
                raise InvalidRequest(
                    f"{name} must be non-negative or -1, got {value}.", name, value
                )
        if not all(self.stop):
            raise InvalidRequest("stop cannot contain an empty string.")
        if self.stop and not self.detokenize:
            raise InvalidRequest(
                "stop strings are only supported when detokenize is True. "
                "Set detokenize=True to use stop."
            )
        if not all(self.bad_words):
            raise InvalidRequest(
                f"bad_words cannot contain an empty string. Got bad_words={list(self.bad_words)}"
            )

    def _check_temperature(self) -> None:
        value = self.temperature
        if not math.isfinite(value):
            text = f"temperature must be a finite number, got {value}."
        elif value < 0:
            text = f"temperature must be non-negative, got {value}."
        elif value > 2:
            text = f"temperature must be in [0, 2], got {value}."
        else:
            return
        raise InvalidRequest(text, "temperature", value)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens must be at least 1, got {self.max_tokens}.",
                "max_tokens",
                self.max_tokens,
            )
        if self.min_tokens < 0:
            raise InvalidRequest(
                f"min_tokens must be greater than or equal to 0, got {self.min_tokens}."
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, "
                f"got {self.min_tokens}."
            )


def verify(
    params: SamplingParams,
    *,
    vocabulary: int,
    max_logprobs: int,
    return_sampling_mask: bool,
    checks_stop_ids: bool = True,
) -> None:
    """Check a request against the model and the server's settings, in vLLM's order.

    Source: `vllm/v1/engine/input_processor.py::InputProcessor._validate_params`.

    Args:
        params: normalised parameters.
        vocabulary: number of token ids.
        max_logprobs: most a request may ask for; -1 is the vocabulary.
        return_sampling_mask: whether the rules of replay hold.
        checks_stop_ids: whether stop ids beyond the vocabulary are refused (from 0.29 on).

    Raises:
        InvalidRequest: a number of logprobs or a token id is out of range.
        EngineRefusal: a rule of sampling distribution replay, which vLLM answers without text.
    """
    most = vocabulary if max_logprobs == -1 else max_logprobs
    _check_count("sample", "logprobs", params.logprobs, vocabulary, most)
    _check_logprob_token_ids(params, vocabulary)
    _check_count("prompt", "prompt_logprobs", params.prompt_logprobs, vocabulary, most)
    _check_vocabulary("logit_bias", tuple(params.logit_bias), vocabulary)
    if checks_stop_ids:
        _check_vocabulary("stop_token_ids", params.stop_token_ids, vocabulary)
    allowed = params.allowed_token_ids
    if allowed is not None:
        if not allowed:
            raise InvalidRequest(
                "allowed_token_ids is not None and empty!", "allowed_token_ids", []
            )
        if any(not 0 <= token < vocabulary for token in allowed):
            raise InvalidRequest(
                "allowed_token_ids contains out-of-vocab token id!",
                "allowed_token_ids",
                [token for token in allowed if not 0 <= token < vocabulary],
            )
    if return_sampling_mask:
        if params.temperature <= 0:
            raise EngineRefusal("sampling distribution replay requires temperature > 0")
        if params.top_k <= 0:
            raise EngineRefusal(
                "sampling distribution replay requires top_k > 0 to bound sampling mask size, "
                "reduce transfer overhead, and avoid potential OOMs"
            )


def ends_engine(params: SamplingParams) -> bool:
    """Whether vLLM takes the request and its engine then dies of it.

    Source: `vllm/v1/worker/gpu/sample/{states,logit_bias,bad_words}.py`, whose buffers are
    of fixed size and whose errors nobody catches.
    """
    seed = params.seed or 0
    return (
        not -(2**63) <= seed <= seed + params.n - 1 < 2**63
        or len(params.allowed_token_ids or ()) > 1024
        or len(params.logit_bias) > 1024
        or (params.min_tokens > 0 and len(params.all_stop_token_ids) > 128)
        or sum(len(sequence) for sequence in params.bad_sequences) > 1024
    )


def _check_count(what: str, name: str, count: int | None, vocabulary: int, most: int) -> None:
    if not count:
        return
    count = vocabulary if count == -1 else count
    if count > most:
        raise InvalidRequest(
            f"Requested {what} logprobs of {count}, which is greater than max allowed: {most}",
            name,
            count,
        )


def _check_logprob_token_ids(params: SamplingParams, vocabulary: int) -> None:
    ids = params.logprob_token_ids
    if ids is None:
        return
    name = "logprob_token_ids"
    if len(ids) > MAX_LOGPROB_TOKEN_IDS:
        raise InvalidRequest(
            f"Requested logprob_token_ids of length {len(ids)}, "
            f"which is greater than max allowed: {MAX_LOGPROB_TOKEN_IDS}",
            name,
            len(ids),
        )
    _check_vocabulary(name, ids, vocabulary)
    if params.logprobs is not None and params.logprobs != len(ids):
        raise InvalidRequest(
            "When both logprobs and logprob_token_ids are set, logprobs must equal "
            f"len(logprob_token_ids). Got logprobs={params.logprobs}, "
            f"len(logprob_token_ids)={len(ids)}.",
            name,
            len(ids),
        )


def _check_vocabulary(name: str, ids: tuple[int, ...], vocabulary: int) -> None:
    beyond = [token for token in ids if not 0 <= token < vocabulary]
    if beyond:
        raise InvalidRequest(
            f"token_id(s) {beyond} in {name} contain out-of-vocab token ids. "
            f"Vocabulary size: {vocabulary}",
            name,
            beyond,
        )
