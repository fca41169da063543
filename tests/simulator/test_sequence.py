from __future__ import annotations

import math
from typing import Any

import pytest

from app.simulator.model import ToyModel
from app.simulator.sampler import LogprobsMode
from app.simulator.sampling_params import SamplingParams
from app.simulator.sequence import GeneratedSequence, Step, prompt_candidates
from app.simulator.settings import SimulatorSettings
from app.simulator.tokenizer import END_TOKEN

PROMPT = [5, 17, 99]
HHH: dict[str, Any] = {"allowed_token_ids": [71], "top_k": 1}


def _steps(
    prompt: list[int] = PROMPT,
    *,
    settings: SimulatorSettings | None = None,
    seed: int = 7,
    **given: Any,
) -> list[Step]:
    sequence = GeneratedSequence(
        prompt,
        SamplingParams.parse({"top_k": 5, "ignore_eos": True, **given}),
        seed=seed,
        settings=settings or SimulatorSettings(),
        model=ToyModel(),
    )
    return list(sequence)


def _text(steps: list[Step]) -> str:
    return "".join(step.text for step in steps)


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    first = [step.token for step in _steps(seed=1)]

    assert first == [step.token for step in _steps(seed=1)]
    assert first != [step.token for step in _steps(seed=2)]


def test_generators_of_the_versions_draw_differently() -> None:
    old, new = (
        [step.token for step in _steps(settings=SimulatorSettings(vllm_version=version))]
        for version in ("0.30.0", "0.31.0")
    )

    assert old != new


def test_it_ends_at_max_tokens() -> None:
    steps = _steps(max_tokens=3)

    assert [step.finish_reason for step in steps] == [None, None, "length"]


def test_it_ends_where_the_context_is_full() -> None:
    steps = _steps([9] * 14, settings=SimulatorSettings(max_model_len=16), max_tokens=50)

    assert [step.finish_reason for step in steps] == [None, "length"]


def test_a_stop_token_ends_it_and_is_named() -> None:
    (step,) = _steps(**HHH, stop_token_ids=[71])

    assert (step.finish_reason, step.stop_reason, step.token, step.text) == ("stop", 71, 71, "")


def test_the_end_token_ends_it_without_a_reason_unless_ignored() -> None:
    only_end: dict[str, Any] = {"allowed_token_ids": [END_TOKEN], "top_k": 1, "max_tokens": 2}

    (step,) = _steps(**only_end, ignore_eos=False)

    assert (step.finish_reason, step.stop_reason) == ("stop", None)
    assert len(_steps(**only_end)) == 2


def test_a_stop_string_ends_it_and_is_cut_off() -> None:
    steps = _steps(**HHH, stop=["hhh"], max_tokens=9)

    assert len(steps) == 3
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("stop", "hhh")
    assert _text(steps) == ""


def test_a_stop_string_is_kept_where_asked_for() -> None:
    steps = _steps(**HHH, stop=["hhh"], max_tokens=9, include_stop_str_in_output=True)

    assert _text(steps) == "hhh"


def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    steps = _steps(**HHH, stop=["hhhh"], max_tokens=3)

    assert [step.text for step in steps] == ["", "", "hhh"]


def test_of_two_stop_strings_the_one_that_ends_first_wins() -> None:
    steps = _steps(**HHH, stop=["hhh", "hh"], max_tokens=9)

    assert steps[-1].stop_reason == "hh"


def test_stop_strings_wait_for_the_minimum_length() -> None:
    steps = _steps(**HHH, stop=["h"], min_tokens=3, max_tokens=9)

    assert len(steps) == 4
    assert _text(steps) == "hhh"


def test_nothing_is_decoded_where_text_is_not_wanted() -> None:
    assert _text(_steps(**HHH, detokenize=False)) == ""


@pytest.mark.parametrize("masks", [True, False])
def test_masks_come_only_from_servers_that_return_them(masks: bool) -> None:
    steps = _steps(settings=SimulatorSettings(return_sampling_mask=masks), top_k=3)

    assert all((step.mask is not None) == masks for step in steps)
    if masks:
        assert all(step.mask is not None and len(step.mask) == 3 for step in steps)
        assert all(step.mask is not None and step.token in step.mask for step in steps)


def test_masks_of_old_versions_may_exceed_top_k() -> None:
    sizes = {
        version: [
            len(step.mask or ())
            for seed in range(5)
            for step in _steps(
                settings=SimulatorSettings(vllm_version=version),
                seed=seed,
                top_k=40,
                max_tokens=20,
            )
        ]
        for version in ("0.29.0", "0.30.0")
    }

    assert set(sizes["0.30.0"]) == {40}
    assert max(sizes["0.29.0"]) > 40
    assert min(sizes["0.29.0"]) == 40


def test_processed_logprobs_sum_to_one_over_the_mask_and_raw_ones_to_less() -> None:
    sums = {}
    for mode in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.RAW_LOGPROBS):
        settings = SimulatorSettings(logprobs_mode=mode)
        totals = []
        for step in _steps(settings=settings, top_k=5, logprobs=20):
            assert step.mask is not None
            assert step.candidates is not None
            found = {c.token: c.logprob for c in step.candidates}
            totals.append(sum(math.exp(found[token]) for token in step.mask))
        sums[mode] = totals

    assert sums[LogprobsMode.PROCESSED_LOGPROBS] == pytest.approx([1] * 16, abs=1e-5)
    assert all(total < 0.999 for total in sums[LogprobsMode.RAW_LOGPROBS])


def test_greedy_sampling_takes_the_likeliest_token_whatever_the_seed() -> None:
    settings = SimulatorSettings(return_sampling_mask=False)

    runs = [_steps(settings=settings, seed=seed, temperature=0) for seed in (1, 2)]

    assert [s.token for s in runs[0]] == [s.token for s in runs[1]]
    assert runs[0][0].token == int(ToyModel().logits(PROMPT).argmax())


def test_prompt_candidates_score_every_token_but_the_first() -> None:
    found = prompt_candidates(ToyModel(), PROMPT, 2)

    assert found[0] is None
    assert [entry[0].token for entry in found[1:] if entry] == PROMPT[1:]
    assert all(len(entry) in (2, 3) for entry in found[1:] if entry)
    assert len((prompt_candidates(ToyModel(), PROMPT, -1)[1]) or ()) == 1024
