"""Masks and logprobs in the forms that trainers keep them in."""

from __future__ import annotations

import base64
import copy
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.errors import UnusableInput
from app.replay.report import ReplayVerdict, replay
from app.replay.wire.case import read_case
from tests.replay.engine import Engine

Case = dict[str, Any]
Pack = Callable[[Any], Any]


def plain(values: Any) -> Any:
    return values


def raw(dtype: str) -> Pack:
    def pack(values: Any) -> Any:
        array = np.array(values).astype(np.dtype(dtype).newbyteorder("<"))
        data = base64.b64encode(array.tobytes()).decode()
        return {"data": data, "dtype": dtype, "shape": list(array.shape)}

    return pack


def npy(dtype: str) -> Pack:
    def pack(values: Any) -> str:
        stream = io.BytesIO()
        np.save(stream, np.array(values).astype(dtype))
        return base64.b64encode(stream.getvalue()).decode()

    return pack


def flat(masks: list[list[int]]) -> list[int]:
    return [token for mask in masks for token in mask]


def with_counts(masks: list[list[int]], pack: Pack) -> Case:
    return {"ids": pack(flat(masks)), "counts": pack([len(mask) for mask in masks])}


def with_offsets(masks: list[list[int]], pack: Pack) -> Case:
    offsets = np.concatenate([[0], np.cumsum([len(mask) for mask in masks])])
    return {"ids": pack(flat(masks)), "offsets": pack(offsets.tolist())}


def dense(masks: list[list[int]], pack: Pack, padding: int = -1) -> Case:
    width = max(map(len, masks))
    rows = [mask + [padding] * (width - len(mask)) for mask in masks]
    return {"rows": pack(rows), "sizes": pack([len(mask) for mask in masks])}


def zero_padded(masks: list[list[int]], pack: Pack) -> Case:
    return dense(masks, pack, 0)


def nested_case() -> Case:
    return Engine().case(top_k=8, top_p=0.9, logprobs=8, max_tokens=30)


def choice_of(case: Case) -> Case:
    choice: Case = case["response"]["choices"][0]
    return choice


def logprobs_on_mask(case: Case) -> list[float]:
    choice = choice_of(case)
    values = []
    for mask, entry in zip(choice["sampling_mask"], choice["logprobs"]["content"], strict=True):
        by_id = {c["token_id"]: c["logprob"] for c in entry["top_logprobs"]}
        values += [by_id[token] for token in mask]
    return values


@pytest.mark.parametrize("pack", [plain, raw("int32"), raw("int64"), npy("int32")])
@pytest.mark.parametrize("form", [with_counts, with_offsets, dense, zero_padded])
def test_every_form_of_the_mask_gives_the_same_report(
    form: Callable[[list[list[int]], Pack], Case], pack: Pack
) -> None:
    case = nested_case()
    expected = replay(case).as_json()
    choice = choice_of(case)
    choice["sampling_mask"] = form(choice["sampling_mask"], pack)
    choice["token_ids"] = pack(choice["token_ids"])
    assert replay(case).as_json() == expected
    assert replay(json.dumps(case)).as_json() == expected


@pytest.mark.parametrize("pack", [plain, raw("float32"), raw("float64"), npy("float32")])
def test_logprobs_on_the_mask_prove_as_much_as_candidates(pack: Pack) -> None:
    case = nested_case()
    packed = copy.deepcopy(case)
    choice_of(packed)["logprobs"] = {
        "on_mask": pack(logprobs_on_mask(case)),
        "sampled": pack([e["logprob"] for e in choice_of(case)["logprobs"]["content"]]),
    }
    report = replay(packed)
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert report.rows == replay(case).rows
    assert report.choices == replay(case).choices


def bare_case(**changes: Any) -> Case:
    """The evidence without a response around it, flat, as lists."""
    case = nested_case()
    masks = choice_of(case)["sampling_mask"]
    return {
        "vllm_version": case["vllm_version"],
        "request": case["request"],
        "token_ids": choice_of(case)["token_ids"],
        **with_counts(masks, plain),
        "logprobs": logprobs_on_mask(case),
        **changes,
    }


def by_row(values: list[Any], masks: list[list[int]]) -> list[list[Any]]:
    flat_values = iter(values)
    return [[next(flat_values) for _ in mask] for mask in masks]


def padded(values: list[Any], masks: list[list[int]], padding: Any) -> list[list[Any]]:
    width = max(map(len, masks))
    return [row + [padding] * (width - len(row)) for row in by_row(values, masks)]


def raw_text(values: Any, dtype: str) -> str:
    return base64.b64encode(np.array(values, dtype).tobytes()).decode()


def bare_forms() -> dict[str, Case]:
    """The same evidence in the forms of `facts/users`: one a framework, and some in between."""
    nested, bare = nested_case(), bare_case()
    masks, values = choice_of(nested)["sampling_mask"], bare["logprobs"]
    for name in ("ids", "counts", "logprobs"):
        del bare[name]
    offsets = with_offsets(masks, plain)["offsets"]
    sizes = [len(mask) for mask in masks]
    tokens = bare["token_ids"]
    dense_values = padded(values, masks, float("nan"))
    forms: dict[str, Case] = {
        "lengths": {**with_counts(masks, plain), "logprobs": values},
        "sizes": {"ids": flat(masks), "sizes": sizes, "logprobs": values},
        "offsets": {"ids": flat(masks), "offsets": offsets, "logprobs": values},
        "int32 text": {
            "ids": raw_text(flat(masks), "<i4"),
            "offsets": raw_text(offsets, "<i4"),
            "logprobs": raw_text(values, "<f4"),
            "token_ids": raw_text(tokens, "<i4"),
        },
        "lists a row": {"sampling_mask": masks, "logprobs": by_row(values, masks)},
        "padded array": {
            "sampling_mask": raw("int32")(dense(masks, plain)["rows"]),
            "logprobs": raw("float32")(dense_values),
        },
        "padded npy": {
            "sampling_mask": npy("int32")(dense(masks, plain)["rows"]),
            "logprobs": npy("float32")(dense_values),
        },
        "rows and sizes": {
            **zero_padded(masks, raw("int32")),
            "logprobs": {"on_mask": raw("float32")(dense_values)},
        },
        "in an array": {"ids": flat(masks), "counts": sizes, "logprobs": raw("float32")(values)},
    }
    forms["lengths"]["lengths"] = forms["lengths"].pop("counts")
    cases = {name: {**bare, **form} for name, form in forms.items()}
    members = {**bare, **with_counts(masks, plain), "logprobs": values}
    about = {name: members.pop(name) for name in ("vllm_version", "request")}
    cases["inside a response"] = {**about, "response": members}
    cases["inside choices"] = {**about, "choices": [members]}
    cases["tokens"] = {**about, **members, "tokens": members["token_ids"]}
    del cases["tokens"]["token_ids"]
    return cases


@pytest.mark.parametrize("form", bare_forms())
def test_bare_evidence_proves_as_much_as_a_response(form: str) -> None:
    case = bare_forms()[form]
    expected = replay(nested_case())
    for given in (case, json.dumps(case)):
        report = replay(given)
        assert report.verdict is ReplayVerdict.CONSISTENT, report.findings
        assert report.rows == expected.rows
        assert report.choices == ({**expected.choices[0], "finish_reason": None},)
        assert not report.findings


def test_several_bare_choices_have_their_own_seeds() -> None:
    case = Engine().case(top_k=8, top_p=0.9, logprobs=8, max_tokens=30, n=3)
    choices = []
    for choice in case["response"]["choices"]:
        choices.append({name: choice[name] for name in ("index", "token_ids", "sampling_mask")})
        single = {"response": {"choices": [choice]}}
        choices[-1]["logprobs"] = by_row(logprobs_on_mask(single), choice["sampling_mask"])
    report = replay({**{k: case[k] for k in ("vllm_version", "request")}, "choices": choices})
    assert report.verdict is ReplayVerdict.CONSISTENT
    assert report.rows["exact"] == 90
    del choices[1]["index"]
    assert replay({**case, "response": None, "choices": choices}).rows["mismatch"] > 0


def test_sampled_logprobs_alone_decide_what_they_can() -> None:
    case = bare_case()
    sampled = [entry["logprob"] for entry in choice_of(nested_case())["logprobs"]["content"]]
    for logprobs in (sampled, {"sampled": sampled}, raw("float32")(sampled)):
        report = replay({**case, "logprobs": logprobs})
        assert report.verdict is ReplayVerdict.UNPROVEN
        assert report.rows["mismatch"] == 0
        assert 0 < report.rows["exact"] < 30
        assert set(report.rows["undecidable_reasons"]) == {"mask_not_covered"}
    both = replay({**case, "sampled_logprobs": sampled})
    assert both.verdict is ReplayVerdict.CONSISTENT


def test_a_prompt_may_be_told_by_its_length() -> None:
    case = bare_case()
    prompt = case["request"].pop("token_ids")
    assert replay(case).rows["undecidable_reasons"] == {"no_prompt_length": 30}
    assert replay({**case, "prompt_length": len(prompt)}).verdict is ReplayVerdict.CONSISTENT


def with_tool_tokens(masks_of_them: list[int]) -> Case:
    """Rows 10 to 14 are a tool's: other ids, no logprobs, and the mask given."""
    case = bare_case()
    counts, ids, values = case["counts"], case["ids"], case["logprobs"]
    masks, rows = by_row(ids, [[0] * n for n in counts]), by_row(values, [[0] * n for n in counts])
    for row in range(10, 15):
        case["token_ids"][row] = 1000 + row
        masks[row] = [1000 + row for _ in masks_of_them]
        rows[row] = [0.0 for _ in masks_of_them]
    case["ids"], case["counts"] = flat(masks), [len(mask) for mask in masks]
    case["logprobs"] = {"on_mask": [value for row in rows for value in row]}
    return case


@pytest.mark.parametrize("mask", [[], [1]], ids=["count 0", "singleton"])
@pytest.mark.parametrize("pack", [plain, lambda m: [bool(v) for v in m], raw("int32")])
def test_rows_out_of_the_loss_are_not_replayed_and_keep_their_places(
    mask: list[int], pack: Pack
) -> None:
    case = with_tool_tokens(mask)
    case["loss_mask"] = pack([0 if 10 <= row < 15 else 1 for row in range(30)])
    report = replay(case)
    assert report.verdict is ReplayVerdict.CONSISTENT, report.findings
    assert (report.rows["exact"], report.rows["not_replayed"]) == (25, 5)
    assert report.checks["replay-sampled-in-mask"] == {"passed": 25, "failed": 0, "not_checked": 5}


def test_tool_tokens_without_a_loss_mask() -> None:
    singletons = replay(with_tool_tokens([1]))
    assert singletons.verdict is ReplayVerdict.CONSISTENT
    assert singletons.rows["exact"] == 30
    (empty,) = replay(with_tool_tokens([])).findings
    assert empty.rule == "replay-mask-empty"


def test_a_loss_mask_does_not_hide_the_other_rows() -> None:
    case = with_tool_tokens([])
    case["loss_mask"] = [0 if 10 <= row < 15 else 1 for row in range(30)]
    case["token_ids"][20], case["token_ids"][10] = -5, -7
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT
    assert {row["row"] for f in report.findings for row in f.evidence["rows"]} == {20}


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"loss_mask": [1]}, "misaligned-loss-mask", "/loss_mask"),
        ({"loss_mask": [2] * 30}, "wrong-type", "/loss_mask"),
        ({"logprobs": [0.0]}, "misaligned-logprobs", "/logprobs"),
        ({"logprobs": [[0.0]] * 29}, "misaligned-logprobs", "/logprobs"),
        ({"logprobs": [[0.0]] * 30}, "misaligned-logprobs", "/logprobs/"),
        ({"logprobs": [[0.0], 0.0]}, "wrong-type", "/logprobs"),
        ({"ids": None, "counts": None}, "no-sampling-mask", "/sampling_mask"),
        ({"counts": [1] * 29 + [2], "ids": [5] * 31}, "misaligned-logprobs", "/logprobs"),
        ({"token_ids": [1]}, "misaligned-mask", "/ids"),
        ({"sizes": [1]}, "missing-member", ""),
        ({"sampling_mask": raw("int32")([1, 2])}, "bad-shape", "/sampling_mask"),
    ],
)
def test_bare_evidence_that_does_not_fit_is_pointed_at(
    change: Case, code: str, pointer: str
) -> None:
    with pytest.raises(UnusableInput) as caught:
        read_case(bare_case(**change))
    problem = caught.value.problems[0]
    assert problem.code == code
    assert problem.pointer is not None
    assert problem.pointer.startswith(pointer)


def test_logprobs_that_may_be_of_either_are_refused() -> None:
    case = bare_case(token_ids=[1, 2], ids=[1, 3], counts=[2, 0], logprobs=[-0.5, -0.9])
    with pytest.raises(UnusableInput) as caught:
        read_case({**case, "loss_mask": [1, 0]})
    assert caught.value.problems[0].code == "ambiguous-logprobs"


def test_findings_about_bare_evidence_point_into_it() -> None:
    case = bare_case()
    case["token_ids"][3] = 5000
    findings = replay(case).findings
    assert findings
    for finding in findings:
        assert finding.location is not None
        assert not (finding.location.pointer or "").startswith("/response")


def test_logprobs_follow_a_mask_that_does_not_ascend() -> None:
    case = nested_case()
    values = iter(logprobs_on_mask(case))
    rows = [[next(values) for _ in mask] for mask in choice_of(case)["sampling_mask"]]
    for mask in choice_of(case)["sampling_mask"]:
        mask.reverse()
    choice_of(case)["logprobs"] = {"on_mask": [v for row in rows for v in reversed(row)]}
    assert replay(case).verdict is ReplayVerdict.CONSISTENT


def test_packed_evidence_is_refuted_like_any_other() -> None:
    case = nested_case()
    choice = choice_of(case)
    choice["logprobs"] = {"on_mask": [value - 0.2 for value in logprobs_on_mask(case)]}
    choice["sampling_mask"] = with_counts(choice["sampling_mask"], raw("int32"))
    report = replay(case)
    assert report.verdict is ReplayVerdict.INCONSISTENT
    assert [f.rule for f in report.findings] == ["replay-normalisation"]


def saved(array: NDArray[Any]) -> str:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return base64.b64encode(stream.getvalue()).decode()


def bomb() -> str:
    stream = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(stream, header)
    return base64.b64encode(stream.getvalue() + b"\0" * 16).decode()


@pytest.mark.parametrize(
    ("mask", "code", "member"),
    [
        ({}, "missing-member", ""),
        ({"ids": [1]}, "missing-member", ""),
        ({"ids": [1], "counts": [1], "offsets": [0, 1]}, "missing-member", ""),
        ({"ids": [1, 2, 3], "offsets": [0, 2]}, "bad-offsets", "/offsets"),
        ({"ids": [1, 2, 3], "offsets": [1, 3]}, "bad-offsets", "/offsets"),
        ({"ids": [1, 2, 3], "offsets": [0, 2, 1, 3]}, "bad-offsets", "/offsets"),
        ({"ids": [1, 2, 3], "offsets": []}, "bad-offsets", "/offsets"),
        ({"ids": [1, 2, 3], "counts": [1, 1]}, "bad-counts", "/counts"),
        ({"ids": [1, 2, 3], "counts": [4, -1]}, "bad-counts", "/counts"),
        ({"rows": [[1, 2], [3]], "sizes": [2, 1]}, "bad-shape", "/rows"),
        ({"rows": [[1, 2], [3, 0]], "sizes": [2]}, "bad-shape", "/rows"),
        ({"rows": [[1, 2], [3, 0]], "sizes": [3, 1]}, "bad-counts", "/sizes"),
        ({"ids": "!", "counts": [1]}, "not-base64", "/ids"),
        ({"ids": "AAAA", "counts": [1]}, "bad-shape", "/ids"),
        ({"ids": base64.b64encode(b"\x93NUMPY?").decode(), "counts": [1]}, "not-npy", "/ids"),
        ({"ids": bomb(), "counts": [1]}, "bad-shape", "/ids"),
        ({"ids": saved(np.array([None])), "counts": [1]}, "wrong-type", "/ids"),
        ({"ids": saved(np.asfortranarray(np.ones((2, 2), "i4"))), "counts": [4]}, "wrong-type", ""),
        ({"ids": {"data": "AAAA", "dtype": "int32"}, "counts": [1]}, "bad-shape", "/ids"),
        ({"ids": {"data": "AAAA", "dtype": "object"}, "counts": [1]}, "wrong-type", "/ids"),
        (
            {"ids": {"data": "AAAAAA==", "dtype": "int32", "shape": [-1]}, "counts": [1]},
            "bad-shape",
            "/ids",
        ),
        ({"ids": raw("float32")([1.0]), "counts": [1]}, "wrong-type", "/ids"),
        ({"ids": [2**80], "counts": [1]}, "no-token-id", "/ids"),
    ],
)
def test_a_packed_mask_that_does_not_fit_is_pointed_at(mask: Case, code: str, member: str) -> None:
    case = nested_case()
    choice_of(case)["sampling_mask"] = mask
    with pytest.raises(UnusableInput) as caught:
        read_case(case)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert problem.pointer is not None
    assert problem.pointer.startswith("/response/choices/0/sampling_mask" + member)


@pytest.mark.parametrize(
    ("logprobs", "code"),
    [
        ({"on_mask": [0.0]}, "misaligned-logprobs"),
        ({"on_mask": raw("int32")([0])}, "wrong-type"),
        ({"on_mask": [float("nan")]}, "no-number"),
        ({"on_mask": raw("float32")([float("inf")])}, "no-number"),
    ],
)
def test_packed_logprobs_that_do_not_fit_are_refused(logprobs: Case, code: str) -> None:
    case = nested_case()
    choice_of(case)["logprobs"] = logprobs
    with pytest.raises(UnusableInput) as caught:
        read_case(case)
    assert caught.value.problems[0].code == code


def test_sampled_logprobs_must_be_one_a_token() -> None:
    case = nested_case()
    choice_of(case)["logprobs"] = {"on_mask": logprobs_on_mask(case), "sampled": [0.0]}
    with pytest.raises(UnusableInput):
        read_case(case)


def test_chunks_are_never_packed() -> None:
    case = nested_case()
    choice = choice_of(case)
    choice["sampling_mask"] = with_counts(choice["sampling_mask"], plain)
    case["response"] = [{"choices": [choice]}]
    with pytest.raises(UnusableInput) as caught:
        read_case(case)
    assert caught.value.problems[0].code == "packed-chunk"
