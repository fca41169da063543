"""Cases that cannot be read are refused with what is wrong and where."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from app.errors import InvalidEnvelope, MalformedDocument, Problem, UnknownVersion, UnusableInput
from app.replay.wire.case import read_case
from app.replay.wire.stream import events
from tests.replay.engine import Engine, chunks_of

Case = dict[str, Any]
CHOICE = "/response/choices/0"


def good(version: str = "0.32.0", **sampling: Any) -> Case:
    return Engine(version).case(**{"logprobs": 12, "max_tokens": 4, **sampling})


def choice_of(case: Case) -> Case:
    choice: Case = case["response"]["choices"][0]
    return choice


def problem_of(case: Case | bytes | str) -> Problem:
    """The problem, which parsed JSON and its text must agree on."""
    with pytest.raises(UnusableInput) as caught:
        read_case(case)
    if isinstance(case, dict):
        with pytest.raises(UnusableInput) as of_text:
            read_case(json.dumps(case))
        assert [p.code for p in of_text.value.problems] == [p.code for p in caught.value.problems]
        assert of_text.value.problems[0].pointer == caught.value.problems[0].pointer
    (problem, *_) = caught.value.problems
    return problem


@pytest.mark.parametrize("member", ["request", "response"])
def test_a_missing_part_is_named(member: str) -> None:
    case = good()
    del case[member]
    assert problem_of(case).pointer == f"/{member}"


def test_a_missing_version_is_named() -> None:
    case = good()
    del case["vllm_version"]
    assert problem_of(case).code == "missing-member"


@pytest.mark.parametrize("version", ["0.27.1", "newest", "0.28 ascend", ""])
def test_a_version_without_masks_is_refused(version: str) -> None:
    with pytest.raises(UnknownVersion) as caught:
        read_case({**good(), "vllm_version": version})
    assert caught.value.problems[0].pointer == "/vllm_version"


def test_forks_and_later_versions_behave_like_the_release_they_build_on() -> None:
    case = good()
    for version in ("0.32.0+cu129", "v0.32.1", "0.33.1rc2", "0.40.0"):
        assert read_case({**case, "vllm_version": version}).semantics.speculative_replay


def test_broken_json_says_line_and_column() -> None:
    problem = problem_of(b'{"vllm_version": "0.32.0",\n "request": }')
    assert (problem.line, problem.column) == (2, 13)
    with pytest.raises(MalformedDocument):
        read_case(b"\xff\xfe")
    for text, code in (
        (b'{"id": ' + b"[" * 100_000, "malformed-json"),
        (b'{"id": ' + b"[" * 100_000 + b"NaN", "malformed-json"),
        (b'{"id": "\xff"}', "not-utf-8"),
        (b'{"id": NaN, "seed": ' + b"7" * 5_000 + b"}", "malformed-json"),
    ):
        assert problem_of(text).code == code
    with pytest.raises(UnusableInput):
        read_case(b"[]")


def test_unknown_options_are_refused() -> None:
    assert "fp64" in problem_of({**good(), "options": {"fp64": True}}).detail


@pytest.mark.parametrize(
    ("version", "streamed", "cause"),
    [
        ("0.28.0", False, "Model Runner V1"),
        ("0.29.0", False, "--enable-batch-sharded-sampling"),
        ("0.31.0", True, "only without streaming"),
        ("0.32.0", True, "--return-sampling-mask"),
        ("0.33.0", False, "derender"),
    ],
)
def test_missing_masks_are_explained_by_version(version: str, streamed: bool, cause: str) -> None:
    case = good(version)
    choice_of(case)["sampling_mask"] = None
    if streamed:
        for part in (chunks := [{"choices": [choice_of(case)]}]):
            part["choices"][0].pop("sampling_mask")
        case["response"] = chunks
    with pytest.raises(InvalidEnvelope) as caught:
        read_case(case)
    assert cause in str(caught.value)
    assert caught.value.problems[0].code == "no-sampling-mask"
    assert caught.value.problems[0].pointer == f"{CHOICE}/sampling_mask"


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        {"prompt": "hi"},
        {"endpoint": "/v1/chat/completions", "body": {"messages": []}},
    ],
)
def test_other_routes_return_no_masks(request_: Case) -> None:
    case = {**good(), "request": request_}
    assert problem_of(case).code == "other-route"


@pytest.mark.parametrize(
    "response", [{"error": {"message": "", "code": 500}}, {"object": "error", "message": "no"}]
)
def test_an_error_is_no_response(response: Case) -> None:
    assert problem_of({**good(), "response": response}).code == "error-response"


def test_an_empty_error_is_explained() -> None:
    response = {"error": {"message": "", "type": "InternalServerError", "code": 500}}
    assert "top_k <= 0" in problem_of({**good(), "response": response}).detail


@pytest.mark.parametrize("response", [{}, {"choices": []}, [], "no events", 7])
def test_a_response_without_choices_is_refused(response: Any) -> None:
    problem_of({**good(), "response": response})


def test_missing_token_ids_are_named() -> None:
    case = good()
    choice_of(case)["token_ids"] = None
    assert problem_of(case).pointer == f"{CHOICE}/token_ids"


@pytest.mark.parametrize(
    ("member", "code"), [("sampling_mask", "misaligned-mask"), ("token_ids", "misaligned-mask")]
)
def test_masks_and_tokens_of_different_length_are_refused(member: str, code: str) -> None:
    case = good()
    choice_of(case)[member].pop()
    assert problem_of(case).code == code


def test_logprobs_and_tokens_of_different_length_are_refused() -> None:
    case = good()
    choice_of(case)["logprobs"]["content"].pop()
    problem = problem_of(case)
    assert (problem.code, problem.pointer) == ("misaligned-logprobs", f"{CHOICE}/logprobs/content")


@pytest.mark.parametrize("value", [1.5, "7", True, None])
def test_an_id_that_is_no_integer_is_pointed_at(value: Any) -> None:
    case = good()
    choice_of(case)["sampling_mask"][1][0] = value
    assert problem_of(case).pointer == f"{CHOICE}/sampling_mask/1/0"
    case = good()
    choice_of(case)["token_ids"][2] = value
    assert problem_of(case).pointer == f"{CHOICE}/token_ids/2"


@pytest.mark.parametrize("member", ["token_ids", "sampling_mask", "logprobs"])
def test_an_id_beyond_64_bits_is_refused(member: str) -> None:
    case = good()
    if member == "token_ids":
        choice_of(case)["token_ids"][1] = 2**70
    elif member == "sampling_mask":
        choice_of(case)["sampling_mask"][1][0] = 2**70
    else:
        choice_of(case)["logprobs"]["content"][1]["token_id"] = 2**70
    assert problem_of(case).code == "no-token-id"


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_logprob_that_is_no_number_is_pointed_at(version: str, value: float) -> None:
    case = good(version)
    choice_of(case)["logprobs"]["content"][1]["top_logprobs"][2]["logprob"] = value
    problem = problem_of(case)
    assert problem.code == "no-number"
    assert problem.pointer == f"{CHOICE}/logprobs/content/1/top_logprobs/2/logprob"
    case = good(version)
    choice_of(case)["logprobs"]["content"][3]["logprob"] = value
    assert problem_of(case).pointer == f"{CHOICE}/logprobs/content/3/logprob"


def test_minus_infinity_and_the_floor_mean_the_same() -> None:
    case = good()
    floored = read_case(case).choices[0].candidates
    text = json.dumps(case).replace("-9999.0", "-Infinity")
    infinite = read_case(text).choices[0].candidates
    assert floored is not None
    assert infinite is not None
    np.testing.assert_array_equal(np.maximum(infinite.logprobs, -9999.0), floored.logprobs)


def test_null_means_not_given() -> None:
    case = good()
    choice_of(case)["logprobs"]["content"][0]["top_logprobs"][1]["logprob"] = None
    candidates = read_case(case).choices[0].candidates
    assert candidates is not None
    assert np.flatnonzero(np.isnan(candidates.logprobs)).tolist() == [1]


@pytest.mark.parametrize("token", ["hel", "token_id:", "token_id:x", "xtoken_id:3", "3", ""])
def test_a_token_that_is_text_cannot_be_tied_to_the_mask(token: str) -> None:
    case = good("0.31.0")
    choice_of(case)["logprobs"]["content"][2]["top_logprobs"][1]["token"] = token
    problem = problem_of(case)
    assert problem.code == "no-token-id"
    assert problem.pointer == f"{CHOICE}/logprobs/content/2/top_logprobs/1"


def test_a_token_without_any_name_is_refused() -> None:
    case = good()
    del choice_of(case)["logprobs"]["content"][2]["token_id"]
    assert problem_of(case).code == "no-token-id"


def test_both_ways_of_naming_tokens_give_the_same_arrays() -> None:
    case = good()
    renamed = copy.deepcopy(case)
    for entry in choice_of(renamed)["logprobs"]["content"]:
        for named in (entry, *entry["top_logprobs"]):
            named["token"] = f"token_id:{named.pop('token_id')}"
    ids, strings = (read_case(c).choices[0].candidates for c in (case, renamed))
    assert ids is not None
    assert strings is not None
    np.testing.assert_array_equal(ids.ids.values, strings.ids.values)
    np.testing.assert_array_equal(ids.named, strings.named)


@pytest.mark.parametrize(
    ("params", "member", "value"),
    [
        ({"seed": -1}, "seed", None),
        ({"seed": 0}, "seed", 0),
        ({"temperature": 0.003}, "temperature", 0.01),
        ({"temperature": None}, "temperature", 1.0),
        ({"top_k": -1}, "top_k", 0),
        ({"temperature": 0, "top_k": 5}, "top_k", 0),
        ({"temperature": 0, "top_p": 0.5, "min_p": 0.1}, "top_p", 1.0),
        ({"logprobs": True}, "logprobs", 1),
        ({"top_k": "20"}, "top_k", 20),
        ({"temperature": "0.5", "seed": "3"}, "temperature", 0.5),
        ({"logit_bias": {"3": -40, "7": 2}}, "largest_bias", 40.0),
        ({"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
    ],
)
def test_sampling_parameters_are_normalised_as_vllm_does(
    params: Case, member: str, value: Any
) -> None:
    case = good()
    case["request"]["sampling_params"] = params
    assert getattr(read_case(case).sampling, member) == value


def test_a_mistyped_parameter_is_pointed_at() -> None:
    case = good()
    case["request"]["sampling_params"]["top_k"] = "many"
    assert problem_of(case).pointer == "/request/sampling_params/top_k"
    case["request"] = {"endpoint": "/inference/v1/generate", "body": case["request"]}
    assert problem_of(case).pointer == "/request/body/sampling_params/top_k"


def test_the_server_knows_the_length_of_a_multimodal_prompt() -> None:
    case = good()
    case["request"]["content_parts"] = [{"type": "image_url", "url": "http://x"}]
    case["response"]["usage"]["prompt_tokens"] = 500
    assert read_case(case).prompt_length == 500
    del case["response"]["usage"]
    assert read_case(case).prompt_length is None


def test_speculation_shows_in_the_metrics() -> None:
    case = good()
    assert read_case(case).speculated is None
    case["response"]["metrics"] = {"speculative_decoding": {"num_drafts": 3}}
    assert read_case(case).speculated is True
    case["options"] = {"speculative": False}
    assert read_case(case).speculated is False


def test_events_follow_the_server_sent_events_format() -> None:
    text = (
        "\ufeff: hello\r\ndata: {\r\ndata: }\r\n\r\nevent: x\rdata:2\r\rdata: [DONE]\n\ndata: cut"
    )
    assert list(events(text)) == ["{\n}", "2", "cut"]


def test_an_error_in_a_stream_is_an_error() -> None:
    text = 'data: {"error": {"message": "boom", "code": 500}}\n\ndata: [DONE]\n\n'
    problem = problem_of({**good(), "response": text})
    assert problem.code == "error-response"
    assert "boom" in problem.detail


def test_chunks_may_interleave_and_carry_nothing() -> None:
    case = good(n=2, max_tokens=6)
    whole = read_case(case)
    chunks = chunks_of(case, [2])
    mixed = [chunks[0], chunks[3], chunks[1], chunks[4], chunks[2], chunks[5], *chunks[6:]]
    mixed.insert(2, {"choices": [{"index": 0, "token_ids": [], "sampling_mask": None}]})
    joined = read_case({**case, "response": mixed})
    for left, right in zip(whole.choices, joined.choices, strict=True):
        np.testing.assert_array_equal(left.token_ids, right.token_ids)
        np.testing.assert_array_equal(left.masks.values, right.masks.values)
        assert left.finish_reason == right.finish_reason
