from __future__ import annotations

from typing import Any

import pytest

from app.simulator.errors import EngineRefusal, InvalidRequest
from app.simulator.sampling_params import SamplingParams, ends_engine, verify


def _verify(masks: bool = True, max_logprobs: int = 20, **given: Any) -> None:
    verify(
        SamplingParams.parse(given),
        vocabulary=1024,
        max_logprobs=max_logprobs,
        return_sampling_mask=masks,
    )


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams.parse({})

    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert (params.n, params.max_tokens, params.seed, params.logprobs) == (1, 16, None, None)


def test_unknown_names_are_ignored() -> None:
    assert SamplingParams.parse({"surprise": 1}) == SamplingParams.parse({})


@pytest.mark.parametrize(
    ("given", "expected"), [(0.001, 0.01), (0.00999, 0.01), (0.01, 0.01), (1e-9, 0.01), (0, 0)]
)
def test_tiny_temperatures_are_raised(given: float, expected: float) -> None:
    assert SamplingParams.parse({"temperature": given}).temperature == expected


def test_greedy_sampling_resets_the_filters() -> None:
    params = SamplingParams.parse({"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.5})

    assert (params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0)


def test_seed_minus_one_means_none() -> None:
    assert SamplingParams.parse({"seed": -1}).seed is None
    assert SamplingParams.parse({"seed": -2}).seed == -2


def test_repeated_ids_and_words_count_once() -> None:
    params = SamplingParams.parse(
        {"stop_token_ids": [3, 1, 3], "bad_words": ["b", "a", "b"], "stop": "x"}
    )

    assert params.stop_token_ids == (3, 1)
    assert params.bad_words == ("b", "a")
    assert params.stop == ("x",)


@pytest.mark.parametrize(
    ("given", "text", "param"),
    [
        ({"temperature": 2.5}, "temperature must be in [0, 2], got 2.5.", "temperature"),
        ({"temperature": float("inf")}, "temperature must be a finite number", "temperature"),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0.", "top_p"),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2.", None),
        ({"min_p": -0.1}, "min_p must be in [0, 1], got -0.1.", None),
        ({"n": 0}, "n must be at least 1, got 0.", None),
        ({"n": 20000}, "n must be at most 16384, got 20000.", None),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2.", None),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0.", "max_tokens"),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1.", None),
        ({"min_tokens": 17}, "min_tokens must be less than or equal to max_tokens=16", None),
        ({"logprobs": -2}, "logprobs must be non-negative or -1, got -2.", "logprobs"),
        ({"frequency_penalty": 2.1}, "frequency_penalty must be in [-2, 2], got 2.1.", None),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero", None),
        ({"repetition_penalty": float("nan")}, "repetition_penalty must be a finite", None),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string.", None),
        ({"stop": "a", "detokenize": False}, "stop strings are only supported when", None),
        ({"bad_words": [""]}, "bad_words cannot contain an empty string. Got bad_words=['']", None),
    ],
)
def test_values_out_of_range_are_refused_in_vllms_words(
    given: dict[str, Any], text: str, param: str | None
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams.parse(given)

    assert refusal.value.message.startswith(text)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"logprobs": 21},
            "Requested sample logprobs of 21, which is greater than max allowed: 20",
        ),
        ({"logprobs": -1}, "Requested sample logprobs of 1024, which is greater than max"),
        ({"prompt_logprobs": 21}, "Requested prompt logprobs of 21, which is greater than max"),
        ({"logprob_token_ids": [1] * 129}, "Requested logprob_token_ids of length 129"),
        ({"logprob_token_ids": [1024]}, "token_id(s) [1024] in logprob_token_ids contain"),
        ({"logprob_token_ids": [1], "logprobs": 2}, "When both logprobs and logprob_token_ids"),
        ({"logit_bias": {-1: 1.0}}, "token_id(s) [-1] in logit_bias contain out-of-vocab"),
        ({"stop_token_ids": [1024]}, "token_id(s) [1024] in stop_token_ids contain"),
        ({"allowed_token_ids": []}, "allowed_token_ids is not None and empty!"),
        ({"allowed_token_ids": [1, 1024]}, "allowed_token_ids contains out-of-vocab token id!"),
    ],
)
def test_the_engine_refuses_what_does_not_fit_the_model(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        _verify(top_k=5, **given)

    assert refusal.value.message.startswith(text)


def test_the_whole_vocabulary_needs_an_unlimited_server() -> None:
    _verify(max_logprobs=-1, top_k=5, logprobs=-1)


@pytest.mark.parametrize("given", [{"temperature": 0}, {}, {"top_k": -1}, {"top_k": 0}])
def test_masks_need_sampling_and_top_k(given: dict[str, Any]) -> None:
    with pytest.raises(EngineRefusal) as refusal:
        _verify(**given)

    assert (refusal.value.status, refusal.value.message) == (500, "")
    assert refusal.value.reason.startswith("sampling distribution replay requires")
    _verify(masks=False, **given)


def test_other_errors_come_before_those_of_replay() -> None:
    with pytest.raises(InvalidRequest):
        _verify(temperature=0, logprobs=21)


@pytest.mark.parametrize(
    "given",
    [
        {"seed": 2**63},
        {"seed": 2**63 - 1, "n": 2},
        {"seed": -(2**63) - 1},
        {"allowed_token_ids": [1] * 1025},
        {"logit_bias": dict.fromkeys(range(1025), 0.0)},
        {"stop_token_ids": list(range(128)), "min_tokens": 1},
        {"bad_words": ["x" * 1025]},
    ],
)
def test_what_overflows_the_workers_buffers_ends_the_engine(given: dict[str, Any]) -> None:
    assert ends_engine(SamplingParams.parse(given))


@pytest.mark.parametrize(
    "given",
    [
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"allowed_token_ids": [1] * 1024},
        {"stop_token_ids": list(range(200))},
        {"stop_token_ids": list(range(127)), "min_tokens": 1},
    ],
)
def test_the_largest_values_that_fit_do_not(given: dict[str, Any]) -> None:
    assert not ends_engine(SamplingParams.parse(given))


def test_a_bad_word_is_forbidden_after_a_space_too_where_that_is_one_token() -> None:
    # The toy tokenizer has no token for a space and a letter, so only the word itself is.
    assert SamplingParams.parse({"bad_words": ["hi"]}).bad_sequences == ((71, 72),)
