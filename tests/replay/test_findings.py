"""What the report says of ties, streams, ids and features that cannot be repeated."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay.report import ReplayVerdict, replay
from tests.replay.engine import Engine, chunks_of
from tests.replay.recorded import Case, rules_of, sample
from tests.replay.tampering import (
    add_a_listed_id,
    choice_of,
    drop_the_sampled_id,
    wide_row,
    wrong_seed,
)


def test_ties_beyond_top_k_are_no_refutation() -> None:
    case = Engine(coarse=True, vocabulary=400).case(top_k=20, logprobs=60, max_tokens=60)
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    (finding,) = report.findings
    assert finding.rule == "replay-mask-size"
    assert finding.severity.value == "info"
    assert report.checks["replay-mask-size"]["failed"] == 0


def test_a_wide_mask_without_all_logprobs_is_only_suspect() -> None:
    case = Engine(vocabulary=400).case(top_k=20, logprobs=5, max_tokens=10)
    case["request"]["sampling_params"]["top_k"] = 10
    report = replay(case)
    finding = next(f for f in report.findings if f.rule == "replay-mask-size")
    assert finding.severity.value == "warning"
    assert report.checks["replay-mask-size"]["not_checked"] == 10


def test_top_p_that_was_not_applied_is_a_warning() -> None:
    case = Engine().case(logprobs=12, max_tokens=40)
    case["request"]["sampling_params"]["top_p"] = 0.5
    assert "replay-top-p" in rules_of(replay(case))


def test_mask_order_carries_no_meaning() -> None:
    case = Engine().case(logprobs=12)
    for mask in choice_of(case)["sampling_mask"]:
        mask.reverse()
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert rules_of(report) == {"replay-mask-order"}


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), n=st.integers(1, 3))
def test_any_chunking_of_a_stream_gives_the_report_of_the_whole(sizes: list[int], n: int) -> None:
    case = Engine().case(n=n, logprobs=12, max_tokens=25)
    whole = replay(case).as_json()
    chunks = chunks_of(case, sizes)
    assert replay({**case, "response": chunks}).as_json() == whole
    text = "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)
    recorded = {**case, "response": text + ": comment\n\ndata: [DONE]\n\n"}
    assert replay(recorded).as_json() == whole
    assert replay(json.dumps(recorded).encode()).as_json() == whole
    assert replay(json.dumps({**case, "response": chunks})).as_json() == whole


def test_a_truncated_stream_is_told() -> None:
    case = Engine().case(logprobs=12, max_tokens=25)
    report = replay({**case, "response": chunks_of(case, [3])[:-3]})
    assert rules_of(report) == {"replay-unfinished"}


@pytest.mark.parametrize(("ends", "severity"), [((2, 6), "warning"), ((1, 2, 4, 6), "error")])
def test_cumulative_chunks_are_told(ends: tuple[int, ...], severity: str) -> None:
    case = Engine().case(logprobs=12, max_tokens=6)
    whole = case["response"]["choices"][0]
    chunks = [
        {
            "choices": [
                {
                    **whole,
                    "token_ids": whole["token_ids"][:end],
                    "sampling_mask": whole["sampling_mask"][:end],
                    "logprobs": {"content": whole["logprobs"]["content"][:end]},
                }
            ]
        }
        for end in ends
    ]
    report = replay({**case, "response": chunks})
    finding = next(f for f in report.findings if f.rule == "replay-cumulative")
    assert finding.severity.value == severity


def test_chunks_whose_parts_are_of_other_tokens_are_told() -> None:
    case = Engine().case(logprobs=12, max_tokens=6)
    chunks = chunks_of(case, [3])
    early, late = (chunk["choices"][0] for chunk in chunks[:2])
    late["logprobs"]["content"].insert(0, early["logprobs"]["content"].pop())
    report = replay({**case, "response": chunks})
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert rules_of(report) == {"replay-chunks"}


@pytest.mark.parametrize("place", [0, 1, 5])
def test_a_rank_that_is_not_the_place_is_told(place: int) -> None:
    case = sample("0.32.0")
    top = choice_of(case)["logprobs"]["content"][3]["top_logprobs"]
    assert replay(case).checks["replay-candidate-ranks"]["passed"] == 12
    top[place]["rank"] += 1
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert rules_of(report) == {"replay-candidate-ranks"}


def test_ranks_of_a_list_in_another_order_are_not_judged() -> None:
    case = sample("0.32.0")
    top = choice_of(case)["logprobs"]["content"][3]["top_logprobs"]
    top[1:] = reversed(top[1:])
    report = replay(case)
    assert report.checks["replay-candidate-ranks"]["not_checked"] == 1
    assert rules_of(report) == {"replay-candidates"}


def test_an_id_that_only_the_padded_head_has_is_told() -> None:
    case = {**Engine().case(logprobs=12), "options": {"vocab_size": 48, "tokenizer_size": 40}}
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert rules_of(report) == {"replay-ids"}


def test_ids_of_another_tokenizer_are_recognised() -> None:
    case = {**Engine().case(logprobs=12, max_tokens=40), "options": {"vocab_size": 20}}
    finding = next(f for f in replay(case).findings if f.rule == "replay-ids")
    assert "another tokenizer" in finding.message
    choice = choice_of(case)
    choice["sampling_mask"] = [[i + 100 for i in mask] for mask in choice["sampling_mask"]]
    finding = next(f for f in replay(case).findings if f.rule == "replay-outside-mask")
    assert "different tokenizers" in finding.message


def test_more_tokens_than_the_request_allows_are_refuted() -> None:
    case = Engine().case(logprobs=12, max_tokens=6)
    case["request"]["sampling_params"]["max_tokens"] = 5
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT
    assert rules_of(report) == {"replay-length"}


def test_an_aborted_choice_is_a_prefix() -> None:
    case = Engine().case(logprobs=12)
    choice_of(case)["finish_reason"] = "abort"
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert rules_of(report) == {"replay-unfinished"}


def test_no_tokens_prove_nothing() -> None:
    case = Engine().case(logprobs=12)
    choice_of(case).update(token_ids=[], sampling_mask=None, logprobs=None, finish_reason="abort")
    case["response"]["usage"] = None
    report = replay(case)
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert report.rows["total"] == 0


def test_token_counts_that_differ_are_told() -> None:
    case = Engine().case(logprobs=12)
    case["response"]["usage"] = {"prompt_tokens": 6, "completion_tokens": 13}
    assert rules_of(replay(case)) == {"replay-usage"}


def test_choices_lost_by_0_28_are_a_warning() -> None:
    case = Engine("0.28.0").case(n=3, logprobs=12)
    del case["response"]["choices"][:2]
    case["response"]["usage"] = None
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    (finding,) = report.findings
    assert "output_kind" in finding.message


@pytest.mark.parametrize(
    ("version", "change", "reason"),
    [
        ("0.32.0", {"trace_decode_token_ids": [1, 2]}, "not_reproducible:trace_replay"),
        ("0.32.0", {"logit_bias": {"3": 1e400}}, "not_reproducible:infinite_logit_bias"),
    ],
)
def test_a_request_that_is_not_reproducible_is_named(
    version: str, change: Case, reason: str
) -> None:
    case = Engine(version).case(logprobs=12)
    case["request"]["sampling_params"].update(change)
    assert reason in replay(case).rows["undecidable_reasons"]


def test_forced_tokens_outside_their_mask_are_no_refutation() -> None:
    case = Engine().case(logprobs=12)
    drop_the_sampled_id(case)
    entry = choice_of(case)["logprobs"]["content"]
    case["request"]["sampling_params"]["trace_decode_token_ids"] = [1]
    row = wide_row(choice_of(case))
    entry[row]["logprob"] = entry[row]["top_logprobs"][0]["logprob"] = -9999.0
    assert "replay-draw" not in rules_of(replay(case))


@pytest.mark.parametrize(
    ("version", "options", "reason"),
    [
        ("0.30.0", {"watermark": True}, "not_reproducible:watermark"),
        ("0.33.0", {"watermark": True}, "not_reproducible:watermark"),
    ],
)
def test_a_server_that_is_not_reproducible_is_named(
    version: str, options: Case, reason: str
) -> None:
    case = {**Engine(version).case(logprobs=12), "options": options}
    assert reason in replay(case).rows["undecidable_reasons"]


def test_watermarking_that_the_request_declines_leaves_the_draw() -> None:
    case = {**Engine().case(logprobs=12, watermarking=False), "options": {"watermark": True}}
    assert replay(case).verdict is ReplayVerdict.CONSISTENT


def test_a_thinking_budget_may_leave_members_without_probability() -> None:
    case = Engine().case(top_k=8, top_p=0.95, logprobs=12, max_tokens=40)
    add_a_listed_id(case)
    choice_of(case)["sampling_mask"][wide_row(choice_of(case))].sort()
    case["request"]["sampling_params"]["thinking_token_budget"] = 100
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert rules_of(report) == {"replay-mask-finite"}


def test_report_shows_only_the_first_rows() -> None:
    case = Engine().case(logprobs=12, max_tokens=60)
    wrong_seed(case)
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert finding.evidence["rows_failed"] > len(finding.evidence["rows"]) == 5
    assert {"row", "token_id", "drawn_id", "position", "gap"} <= finding.evidence["rows"][0].keys()


def test_a_case_is_not_changed_by_replaying_it() -> None:
    case = Engine().case(logprobs=12)
    before = copy.deepcopy(case)
    replay(case)
    assert case == before
