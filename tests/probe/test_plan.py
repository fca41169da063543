from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.catalogue.semantics import semantics_of
from app.probe.plan import PlannedRequest, ProbeOptions, make_plan

NEW, OLD = semantics_of("0.32.0"), semantics_of("0.28.0")


def values(plan: tuple[PlannedRequest, ...], name: str) -> Counter[str]:
    return Counter(request.labels[name] for request in plan)


def test_the_same_options_give_the_same_plan_and_another_seed_another() -> None:
    one, two = (make_plan(ProbeOptions(seed=3), NEW) for _ in range(2))
    other = make_plan(ProbeOptions(seed=4), NEW)
    assert one == two
    assert [r.body for r in one] != [r.body for r in other]


def test_the_plan_of_a_seed_never_changes() -> None:
    first = make_plan(ProbeOptions(seed=1, prompt_lengths=(2,)), NEW)[0]
    assert first.body["token_ids"] == [125, 482]
    assert first.body["sampling_params"]["seed"] == 4421253683665673038


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "prompt_length", "stream"])
def test_values_come_equally_often(name: str) -> None:
    counts = values(make_plan(ProbeOptions(requests=80), NEW), name).values()
    assert max(counts) - min(counts) <= 1
    assert len(counts) > 1


def test_several_choices_and_shaped_rows_are_among_them() -> None:
    plan = make_plan(ProbeOptions(), NEW)
    assert values(plan, "n")["3"] >= 10
    assert set(values(plan, "shaping")) == {
        "none",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
    }
    assert any(r.body["sampling_params"]["seed"] >= 2**32 for r in plan)


def test_old_versions_get_no_streams_and_are_told_to_keep_every_choice() -> None:
    plan = make_plan(ProbeOptions(), OLD)
    assert set(values(plan, "stream")) == {"no"}
    several = [r.body["sampling_params"] for r in plan if r.labels["n"] == "3"]
    assert all(params["output_kind"] == 2 for params in several)
    assert all(
        "output_kind" not in r.body["sampling_params"] for r in make_plan(ProbeOptions(), NEW)
    )


def test_streams_can_be_left_out() -> None:
    assert not any(r.stream for r in make_plan(ProbeOptions(streaming=False), NEW))


def test_the_model_is_named_where_it_is_given() -> None:
    assert make_plan(ProbeOptions(requests=1), NEW, model="m")[0].body["model"] == "m"
    assert "model" not in make_plan(ProbeOptions(requests=1), NEW)[0].body


@given(
    st.builds(
        ProbeOptions,
        requests=st.integers(1, 30),
        max_tokens=st.integers(1, 64),
        seed=st.integers(0, 2**63 - 1),
        prompt_lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4).map(tuple),
        token_ids=st.tuples(st.integers(0, 10), st.integers(10, 500)),
        max_logprobs=st.integers(1, 128),
    ),
    st.integers(65, 400),
)
def test_every_request_fits_the_server(options: ProbeOptions, max_model_len: int) -> None:
    plan = make_plan(options, NEW, max_model_len=max_model_len)
    assert [r.index for r in plan] == list(range(options.requests))
    low, high = options.token_ids
    for request in plan:
        params = request.body["sampling_params"]
        assert 0 < params["top_k"] <= params["logprobs"] <= options.max_logprobs
        assert 1 <= len(request.body["token_ids"]) <= max_model_len - options.max_tokens
        assert all(low <= token <= high for token in request.body["token_ids"])
        assert 0 <= params["seed"] < 2**63 - params["n"]


def test_a_model_too_short_for_the_generation_is_refused() -> None:
    with pytest.raises(ValueError, match="64 tokens after a prompt do not fit in the model's 64"):
        make_plan(ProbeOptions(), NEW, max_model_len=64)
