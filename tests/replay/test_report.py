"""Whole cases: real responses, honest synthetic ones, and corrupted ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay.report import REPORT_SCHEMA, ReplayVerdict, Report, render_text, replay
from tests.replay.engine import Engine, chunks_of

SAMPLES = Path(__file__).parent / "samples"
SAMPLED_VERSIONS = ["0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"]
ALL_VERSIONS = [*SAMPLED_VERSIONS, "0.33.0"]

Case = dict[str, Any]


def sample(version: str) -> Case:
    return {
        "id": f"sample-{version}",
        "vllm_version": version,
        "request": json.loads((SAMPLES / "request.json").read_text()),
        "response": json.loads((SAMPLES / f"{version}.json").read_text()),
    }


def rules_of(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


@pytest.mark.parametrize("version", SAMPLED_VERSIONS)
def test_every_row_of_a_real_response_repeats(version: str) -> None:
    report = replay(sample(version))
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert report.rows == {
        "total": 12,
        "exact": 12,
        "mismatch": 0,
        "undecidable": 0,
        "not_replayed": 0,
        "undecidable_reasons": {},
    }
    assert report.findings == ()


def test_report_has_the_documented_members() -> None:
    body = replay(sample("0.32.0")).as_json()
    assert body["schema"] == REPORT_SCHEMA
    assert body["id"] == "sample-0.32.0"
    assert set(body) == {
        "schema",
        "id",
        "verdict",
        "vllm_version",
        "rows",
        "choices",
        "checks",
        "findings",
        "statistics",
    }
    assert body["choices"][0]["singleton_rows"] == 1
    assert body["checks"]["replay-draw"] == {"passed": 12, "failed": 0, "not_checked": 0}
    assert json.loads(json.dumps(body)) == body


def test_text_and_parsed_json_give_the_same_report() -> None:
    case = sample("0.31.0")
    parsed = replay(case).as_json()
    assert replay(json.dumps(case).encode()).as_json() == parsed
    assert replay(json.dumps(case)).as_json() == parsed


def test_request_may_come_with_its_endpoint() -> None:
    case = sample("0.32.0")
    bare = replay(case).as_json()
    case["request"] = {"endpoint": "/inference/v1/generate", "body": case["request"]}
    assert replay(case).as_json() == bare
    assert replay(json.dumps(case)).as_json() == bare


@settings(max_examples=120, deadline=None)
@given(
    version=st.sampled_from(ALL_VERSIONS),
    model_seed=st.integers(0, 2**32),
    coarse=st.booleans(),
    keep_ties=st.booleans(),
    fp64=st.booleans(),
    seed=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 4)),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(1, 50),
    top_p=st.floats(0.2, 1.0),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.4)),
    logprobs=st.one_of(st.none(), st.integers(0, 48)),
    n=st.integers(1, 3),
    prompt=st.integers(1, 40),
)
def test_honest_rows_are_never_refuted(
    version: str,
    model_seed: int,
    coarse: bool,
    keep_ties: bool,
    fp64: bool,
    seed: int | None,
    prompt: int,
    **sampling: Any,
) -> None:
    engine = Engine(version, model_seed=model_seed, coarse=coarse, keep_ties=keep_ties, fp64=fp64)
    report = replay(engine.case(prompt=prompt, seed=seed, **sampling))
    assert report.verdict is not ReplayVerdict.INCONSISTENT, render_text(report)
    assert not [f for f in report.findings if f.severity.value == "error"]
    if seed not in (None, -1) and sampling["logprobs"] == 48:
        assert set(report.rows["undecidable_reasons"]) <= {"gap_below_tolerance"}


def test_all_but_a_few_partly_covered_rows_are_decided() -> None:
    case = Engine().case(top_k=30, logprobs=10, max_tokens=400)
    rows = replay(case).rows
    assert rows["mismatch"] == 0
    assert rows["exact"] > 300
    assert set(rows["undecidable_reasons"]) == {"mask_not_covered"}


def test_bounds_also_refute() -> None:
    case = Engine().case(top_k=30, logprobs=10, max_tokens=400)
    case["request"]["sampling_params"]["seed"] += 1
    assert replay(case).rows["mismatch"] > 100


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": None}, "no_seed"),
        ({"seed": -1}, "no_seed"),
        ({"logprobs": None}, "no_logprobs"),
    ],
)
def test_missing_evidence_leaves_a_response_unproven(change: Case, reason: str) -> None:
    report = replay(Engine().case(**{"logprobs": 20, **change}))
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert report.rows["undecidable_reasons"].keys() == {reason}
    assert report.rows["exact"] == report.choices[0]["singleton_rows"]


def test_an_unknown_prompt_length_leaves_a_response_unproven() -> None:
    case = Engine().case(logprobs=20)
    case["request"]["content_parts"] = [{"type": "image_url", "url": "http://x"}]
    del case["response"]["usage"]
    assert replay(case).rows["undecidable_reasons"].keys() == {"no_prompt_length"}


def test_a_sampled_id_outside_its_mask_needs_no_seed_to_be_refuted() -> None:
    case = Engine().case(logprobs=12, seed=None)
    drop_the_sampled_id(case)
    report = replay(case)
    assert report.rows["mismatch"] == 1
    assert report.verdict is ReplayVerdict.INCONSISTENT


def test_choices_that_were_requests_of_their_own_are_diagnosed() -> None:
    case = Engine().case(n=2, logprobs=20, max_tokens=30)
    own = Engine().case(logprobs=20, max_tokens=30)
    case["response"]["choices"][1] = {**choice_of(own), "index": 1}
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert "request's seed itself" in finding.message


def test_children_of_one_request_have_their_own_seeds() -> None:
    case = Engine().case(n=3, logprobs=20)
    assert replay(case).verdict is ReplayVerdict.CONSISTENT
    case["response"]["choices"][0]["index"] = 1
    case["response"]["choices"][1]["index"] = 0
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT


@pytest.mark.parametrize("temperature", [1e-6, 0.001, 0.009])
def test_a_tiny_temperature_is_the_one_vllm_raises_it_to(temperature: float) -> None:
    case = Engine(coarse=True).case(temperature=0.01, logprobs=20, max_tokens=30)
    case["request"]["sampling_params"]["temperature"] = temperature
    assert replay(case).verdict is not ReplayVerdict.INCONSISTENT


def test_greedy_request_is_not_the_one_that_was_answered() -> None:
    case = Engine().case(logprobs=20)
    case["request"]["sampling_params"].update(temperature=0, top_k=-1)
    report = replay(case)
    assert report.verdict is ReplayVerdict.UNPROVEN
    assert report.rows["undecidable_reasons"].keys() == {"greedy"}
    assert rules_of(report) == {"replay-request"}


# -- corruptions -----------------------------------------------------------------------------


def choice_of(case: Case) -> Case:
    choice: Case = case["response"]["choices"][0]
    return choice


def wide_row(choice: Case) -> int:
    return next(i for i, mask in enumerate(choice["sampling_mask"]) if len(mask) > 3)


def swap_a_token(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    token = choice["token_ids"][row]
    other = next(i for i in choice["sampling_mask"][row] if i != token)
    entry = choice["logprobs"]["content"][row]
    entry["top_logprobs"].sort(key=lambda candidate: candidate["token_id"] != other)
    entry.update(entry["top_logprobs"][0])
    choice["token_ids"][row] = other


def shift_masks(case: Case) -> None:
    masks = choice_of(case)["sampling_mask"]
    masks.append(masks.pop(0))


def drop_a_mask_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    mask = choice["sampling_mask"][row]
    mask.remove(next(i for i in mask if i != choice["token_ids"][row]))


def drop_the_sampled_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    choice["sampling_mask"][row].remove(choice["token_ids"][row])


def add_a_listed_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    top = choice["logprobs"]["content"][row]["top_logprobs"]
    choice["sampling_mask"][row].append(next(c["token_id"] for c in top if c["logprob"] == -9999.0))


def add_an_unlisted_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    listed = {c["token_id"] for c in choice["logprobs"]["content"][row]["top_logprobs"]}
    choice["sampling_mask"][row].append(next(i for i in range(48) if i not in listed))


def repeat_a_mask_id(case: Case) -> None:
    mask = choice_of(case)["sampling_mask"][3]
    mask.insert(0, mask[0])


def empty_a_mask(case: Case) -> None:
    choice_of(case)["sampling_mask"][2] = []


def each_logprob(case: Case, change: Callable[[float], float]) -> None:
    for entry in choice_of(case)["logprobs"]["content"]:
        for candidate in (entry, *entry["top_logprobs"]):
            if candidate["logprob"] > -9999.0:
                candidate["logprob"] = change(candidate["logprob"])


def raw_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: logprob - 0.1)


def scaled_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: logprob * 1.1)


def half_precision_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: float(np.float16(logprob)))


def logits_for_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: logprob + 5.0)


def shift_logprobs(case: Case) -> None:
    content = choice_of(case)["logprobs"]["content"]
    content.append(content.pop(0))


def finite_logprob_outside(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    top = choice["logprobs"]["content"][row]["top_logprobs"]
    next(c for c in top if c["logprob"] == -9999.0)["logprob"] = -8.0


def contradict_the_sampled_logprob(case: Case) -> None:
    choice_of(case)["logprobs"]["content"][5]["logprob"] -= 0.01


def list_a_candidate_twice(case: Case) -> None:
    top = choice_of(case)["logprobs"]["content"][4]["top_logprobs"]
    top.append({**top[0], "logprob": top[0]["logprob"] - 1.0})


def id_beyond_vocabulary(case: Case) -> None:
    choice = choice_of(case)
    choice["token_ids"][0] = 9223372034707292159


def wrong_seed(case: Case) -> None:
    case["request"]["sampling_params"]["seed"] += 1


def wrong_version(case: Case) -> None:
    case["vllm_version"] = "0.30.0"


def another_prompt(case: Case) -> None:
    case["request"]["token_ids"].append(3)


def another_min_p(case: Case) -> None:
    case["request"]["sampling_params"]["min_p"] = 0.5


def another_top_k(case: Case) -> None:
    case["request"]["sampling_params"]["top_k"] = 4


def two_choices_under_one_index(case: Case) -> None:
    case["request"]["sampling_params"]["n"] = 2
    case["response"]["choices"] *= 2


@pytest.mark.parametrize(
    ("corrupt", "rule"),
    [
        (swap_a_token, "replay-draw"),
        (shift_masks, "replay-sampled-in-mask"),
        (drop_a_mask_id, "replay-normalisation"),
        (drop_a_mask_id, "replay-outside-mask"),
        (drop_the_sampled_id, "replay-sampled-in-mask"),
        (add_a_listed_id, "replay-mask-finite"),
        (add_an_unlisted_id, "replay-mask-finite"),
        (repeat_a_mask_id, "replay-mask-unique"),
        (empty_a_mask, "replay-mask-empty"),
        (raw_logprobs, "replay-normalisation"),
        (scaled_logprobs, "replay-normalisation"),
        (half_precision_logprobs, "replay-normalisation"),
        (logits_for_logprobs, "replay-logprob-range"),
        (shift_logprobs, "replay-alignment"),
        (finite_logprob_outside, "replay-outside-mask"),
        (contradict_the_sampled_logprob, "replay-sampled-logprob"),
        (list_a_candidate_twice, "replay-candidates"),
        (id_beyond_vocabulary, "replay-ids"),
        (wrong_seed, "replay-draw"),
        (wrong_version, "replay-draw"),
        (another_prompt, "replay-draw"),
        (another_min_p, "replay-min-p"),
        (another_top_k, "replay-mask-size"),
        (two_choices_under_one_index, "replay-choices"),
    ],
)
def test_a_corruption_is_refuted(corrupt: Callable[[Case], None], rule: str) -> None:
    case = Engine().case(top_k=8, top_p=0.95, logprobs=12, max_tokens=40)
    assert replay(case).verdict is ReplayVerdict.CONSISTENT
    corrupt(case)
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT
    assert rule in rules_of(report), render_text(report)
    finding = next(f for f in report.findings if f.rule == rule)
    assert finding.location is not None
    assert finding.location.pointer is not None
    assert rule in render_text(report)


@pytest.mark.parametrize(
    ("corrupt", "diagnosis"),
    [
        (wrong_version, "MurmurHash3"),
        (another_prompt, "-1 position"),
    ],
)
def test_a_mismatch_says_what_would_explain_it(
    corrupt: Callable[[Case], None], diagnosis: str
) -> None:
    case = Engine().case(logprobs=12, max_tokens=40)
    corrupt(case)
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert diagnosis in finding.evidence["diagnosis"]
    assert diagnosis in finding.message


def test_precision_of_the_noise_is_diagnosed() -> None:
    case = Engine(fp64=True).case(logprobs=12, max_tokens=40)
    del case["options"]
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert "--use-fp64-gumbel" in finding.message


def test_a_temperature_that_is_not_in_the_logprobs_is_diagnosed() -> None:
    case = Engine().case(temperature=0.5, logprobs=12, max_tokens=40)
    each_logprob(case, lambda logprob: logprob * 0.5)
    finding = next(f for f in replay(case).findings if f.rule == "replay-draw")
    assert "temperature 0.5" in finding.message


def test_kept_mass_is_told() -> None:
    case = Engine().case(logprobs=12, max_tokens=40)
    raw_logprobs(case)
    finding = next(f for f in replay(case).findings if f.rule == "replay-normalisation")
    assert finding.evidence["kept_mass"] == pytest.approx(np.exp(-0.1), rel=1e-4)
    assert "processed_logprobs" in finding.message


def test_shifted_masks_are_recognised() -> None:
    case = Engine().case(logprobs=12, max_tokens=40)
    shift_masks(case)
    finding = next(f for f in replay(case).findings if f.rule == "replay-sampled-in-mask")
    assert finding.evidence["fits_moved_by"] == -1


# -- ties, streams and remarks ---------------------------------------------------------------


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
