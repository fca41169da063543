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
        ({"ids": "AAAA", "counts": [1]}, "not-npy", "/ids"),
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
