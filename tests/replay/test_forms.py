"""The same evidence gives the same report, in whatever form and pieces it comes."""

from __future__ import annotations

import base64
import copy
import io
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay.report import replay
from tests.replay.engine import Engine, chunks_of

Case = dict[str, Any]
Pack = Callable[[Any, str], Any]


def plain(values: Any, dtype: str) -> Any:
    return values


def raw(values: Any, dtype: str) -> Any:
    array = np.array(values).astype(np.dtype(dtype).newbyteorder("<"))
    data = base64.b64encode(array.tobytes()).decode()
    return {"data": data, "dtype": dtype, "shape": list(array.shape)}


def npy(values: Any, dtype: str) -> Any:
    stream = io.BytesIO()
    np.save(stream, np.array(values).astype(dtype))
    return base64.b64encode(stream.getvalue()).decode()


def nested(masks: list[list[int]], pack: Pack) -> Any:
    return masks


def counted(masks: list[list[int]], pack: Pack) -> Any:
    flat = [token for mask in masks for token in mask]
    return {"ids": pack(flat, "int32"), "counts": pack(list(map(len, masks)), "int32")}


def offset(masks: list[list[int]], pack: Pack) -> Any:
    ends = np.cumsum([0, *map(len, masks)])
    return {**counted(masks, pack), "counts": None, "offsets": pack(ends.tolist(), "int64")}


def dense(padding: int) -> Callable[[list[list[int]], Pack], Any]:
    def form(masks: list[list[int]], pack: Pack) -> Any:
        width = max(map(len, masks))
        rows = [mask + [padding] * (width - len(mask)) for mask in masks]
        return {"rows": pack(rows, "int32"), "sizes": pack(list(map(len, masks)), "int32")}

    return form


# -- what happened to the evidence; the report has to tell it in every form ----------------------


def leave(case: Case) -> None:
    """Nothing happened."""


def forge_the_seed(case: Case) -> None:
    case["request"]["sampling_params"]["seed"] += 1


def forget_the_seed(case: Case) -> None:
    del case["request"]["sampling_params"]["seed"]


def forge_a_mask(case: Case) -> None:
    mask = case["response"]["choices"][0]["sampling_mask"][1]
    mask[:] = sorted({*mask[1:], 47 if mask[0] != 47 else 46})


def scale_the_logprobs(case: Case) -> None:
    for choice in case["response"]["choices"]:
        for entry in choice["logprobs"]["content"]:
            for candidate in (entry, *entry["top_logprobs"]):
                if candidate["logprob"] > -9999:
                    candidate["logprob"] *= 1.5


EVENTS = (leave, forge_the_seed, forget_the_seed, forge_a_mask, scale_the_logprobs)


@st.composite
def cases(draw: st.DrawFn, *, versions: tuple[str, ...] = ("0.29.0", "0.32.0")) -> Case:
    engine = Engine(
        draw(st.sampled_from(versions)),
        model_seed=draw(st.integers(0, 2**32)),
        coarse=draw(st.booleans()),
    )
    case = engine.case(
        seed=draw(st.integers(-(2**63), 2**62)),
        temperature=draw(st.floats(0.3, 2.0)),
        top_k=draw(st.integers(2, 20)),
        top_p=draw(st.floats(0.5, 1.0)),
        n=draw(st.integers(1, 3)),
        # As many as there are ids, so that logprobs of the masks say as much as candidates.
        logprobs=48,
        max_tokens=draw(st.integers(2, 14)),
    )
    draw(st.sampled_from(EVENTS))(case)
    return case


def told(case: Any) -> Case:
    """The report, without what only a stream can be suspected of."""
    body = replay(case).as_json()
    body["checks"].pop("replay-cumulative", None)
    body["findings"] = [f for f in body["findings"] if f["rule"] != "replay-cumulative"]
    return body


@settings(max_examples=40, deadline=None)
@given(
    case=cases(versions=("0.32.0", "0.33.0")),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_any_chunking_gives_the_report_of_the_whole(
    case: Case, sizes: list[int], order: random.Random, line_end: str
) -> None:
    whole = told(case)
    *chunks, usage = chunks_of(case, sizes)
    of_choice: dict[int, list[Case]] = {}
    for chunk in chunks:
        of_choice.setdefault(chunk["choices"][0]["index"], []).append(chunk)
    mixed = []
    while of_choice:
        index = order.choice(list(of_choice))
        mixed.append(of_choice[index].pop(0))
        if order.random() < 0.2:
            mixed.append({"choices": [{"index": index, "token_ids": [], "sampling_mask": None}]})
        if not of_choice[index]:
            del of_choice[index]
    mixed.append(usage)
    text = "".join(f"data: {json.dumps(chunk)}{line_end}{line_end}" for chunk in mixed)
    text += f": done{line_end}{line_end}data: [DONE]{line_end}{line_end}"
    for response in (mixed, text):
        assert told({**case, "response": response}) == whole
        assert told(json.dumps({**case, "response": response}).encode()) == whole


@settings(max_examples=40, deadline=None)
@given(
    case=cases(),
    form=st.sampled_from([nested, counted, offset, dense(-1), dense(0)]),
    pack=st.sampled_from([plain, raw, npy]),
)
def test_any_form_of_masks_and_ids_gives_the_same_report(
    case: Case, form: Callable[[list[list[int]], Pack], Any], pack: Pack
) -> None:
    expected = told(case)
    packed = copy.deepcopy(case)
    for choice in packed["response"]["choices"]:
        choice["sampling_mask"] = form(choice["sampling_mask"], pack)
        choice["token_ids"] = pack(choice["token_ids"], "int64")
    assert told(packed) == expected
    assert told(json.dumps(packed)) == expected
    assert told(json.dumps(packed, indent=1).encode()) == expected


@settings(max_examples=40, deadline=None)
@given(case=cases(versions=("0.32.0",)), pack=st.sampled_from([plain, raw, npy]))
def test_logprobs_of_the_masks_prove_what_candidates_prove(case: Case, pack: Pack) -> None:
    nested_report = replay(case)
    packed = copy.deepcopy(case)
    for choice in packed["response"]["choices"]:
        values: list[float] = []
        for mask, entry in zip(choice["sampling_mask"], choice["logprobs"]["content"], strict=True):
            listed = {c["token_id"]: c["logprob"] for c in entry["top_logprobs"]}
            values += [listed[token] for token in mask]
        sampled = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        choice["logprobs"] = {
            "on_mask": pack(values, "float64"),
            "sampled": pack(sampled, "float64"),
        }
    report = replay(packed)
    assert report.verdict is nested_report.verdict
    assert report.rows == nested_report.rows
    assert report.choices == nested_report.choices
