"""Cases from Parquet and Arrow files, and rows into them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from app import tables
from app.errors import MalformedDocument, UnusableInput
from app.replay.report import ReplayVerdict, replay
from app.tables import ArrowSink, kind_of_name, read_cases, table_kind
from tests.replay.engine import Engine

Case = dict[str, Any]
KINDS = [".parquet", ".arrow", ".stream.arrow"]


def case(seed: int = 7) -> Case:
    return Engine().case(top_k=8, top_p=0.9, logprobs=8, max_tokens=10, seed=seed)


def packed(seed: int = 7) -> Case:
    """The members of a choice as columns a trainer may have."""
    whole = case(seed)
    choice = whole["response"]["choices"][0]
    entries = choice["logprobs"]["content"]
    logprobs = []
    for mask, entry in zip(choice["sampling_mask"], entries, strict=True):
        by_id = {c["token_id"]: c["logprob"] for c in entry["top_logprobs"]}
        logprobs += [by_id[token] for token in mask]
    return {
        "vllm_version": whole["vllm_version"],
        "request": whole["request"],
        "token_ids": choice["token_ids"],
        "sampling_mask": choice["sampling_mask"],
        "logprobs": logprobs,
    }


def write(path: Path, table: pa.Table, kind: str) -> Path:
    file = path / f"cases{kind}"
    if kind == ".parquet":
        parquet.write_table(table, file, row_group_size=2)
    elif kind == ".arrow":
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    else:
        with pa.ipc.new_stream(str(file), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return file


def read(file: Path) -> list[bytes]:
    kind = table_kind(file)
    assert kind is not None
    return [make() for make in read_cases(file, kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_structs_lists_and_json_text_are_cases(tmp_path: Path, kind: str) -> None:
    cases = [case(seed) for seed in range(5)]
    structs = pa.Table.from_pylist([{"id": n, **c} for n, c in enumerate(cases)])
    texts = pa.Table.from_pylist(
        [
            {
                "id": n,
                **c,
                "request": json.dumps(c["request"]),
                "response": json.dumps(c["response"]),
            }
            for n, c in enumerate(cases)
        ]
    )
    for table in (structs, texts):
        rows = read(write(tmp_path, table, kind))
        assert len(rows) == 5
        for number, row in enumerate(rows):
            report = replay(row)
            assert report.verdict is ReplayVerdict.CONSISTENT
            assert report.id == number


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list])
def test_packed_columns_are_arrays(tmp_path: Path, kind: str, list_type: Any) -> None:
    rows = [packed(seed) for seed in range(5)]
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["token_ids"] = pa.array(columns["token_ids"], list_type(pa.int32()))
    columns["sampling_mask"] = pa.array(columns["sampling_mask"], list_type(list_type(pa.int32())))
    columns["logprobs"] = pa.array(columns["logprobs"], list_type(pa.float32()))
    columns["vllm_version"] = pa.array(columns["vllm_version"]).dictionary_encode()
    table = pa.table(columns)
    for text in read(write(tmp_path, table, kind)):
        assert b'"dtype": "float32"' in text
        report = replay(text)
        assert report.verdict is ReplayVerdict.CONSISTENT
        assert report.rows["exact"] == 10


def test_padded_tensors_and_binary_columns(tmp_path: Path) -> None:
    row = packed()
    flat = np.array([token for mask in row["sampling_mask"] for token in mask], "<i4")
    counts = np.array([len(mask) for mask in row["sampling_mask"]], "<i4")
    del row["sampling_mask"]
    row |= {"ids": flat.tobytes(), "counts": counts.tobytes()}
    row["logprobs"] = np.array(row["logprobs"], "<f4").tobytes()
    (text,) = read(write(tmp_path, pa.Table.from_pylist([row]), ".parquet"))
    assert replay(text).verdict is ReplayVerdict.CONSISTENT


def test_nulls_are_members_left_out_and_nan_is_located(tmp_path: Path) -> None:
    good = {**packed(), "options": None}
    bad = {**packed(), "options": {"vocab_size": 48}}
    bad["logprobs"] = [float("nan"), *bad["logprobs"][1:]]
    first, second = read(write(tmp_path, pa.Table.from_pylist([good, bad]), ".parquet"))
    assert replay(first).verdict is ReplayVerdict.CONSISTENT
    with pytest.raises(UnusableInput) as caught:
        replay(second)
    assert caught.value.problems[0].pointer == "/logprobs"


def test_a_text_that_is_no_json_is_an_error_of_its_row(tmp_path: Path) -> None:
    rows = [{"response": "{"}, {"response": "[1, NaN]"}, {"response": "data: {}\n\n"}]
    file = write(tmp_path, pa.Table.from_pylist(rows), ".parquet")
    broken, nan, events = read_cases(file, ".parquet")
    with pytest.raises(MalformedDocument) as caught:
        broken()
    assert caught.value.problems[0].pointer == "/response"
    assert nan() == b'{"response":[1, NaN]}'
    assert json.loads(events()) == {"response": "data: {}\n\n"}


def test_large_rows_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def spy(columns: Any, row: int, module: Any) -> bytes:
        sizes.append(len(columns[0][1]))
        return b"{}"

    monkeypatch.setattr(tables, "_case", spy)
    table = pa.Table.from_pylist([{"response": f"{n}" * 2_000_000} for n in range(6)])
    file = tmp_path / "large.parquet"
    parquet.write_table(table, file, use_dictionary=False, compression="none")
    assert len(read(file)) == 6
    assert max(sizes) <= 5


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.parquet", b"", ".parquet"),
        ("a.PQ", b"x", ".parquet"),
        ("a.feather", b"x", ".arrow"),
        ("a.bin", b"PAR1....", ".parquet"),
        ("a.bin", b"ARROW1..", ".arrow"),
        ("a.ndjson", b"{}", None),
    ],
)
def test_tables_are_known_by_content_or_name(
    tmp_path: Path, name: str, content: bytes, kind: str | None
) -> None:
    (tmp_path / name).write_bytes(content)
    assert table_kind(tmp_path / name) == kind


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100, b"ARROW1\0\0" + b"x" * 50])
@pytest.mark.parametrize("kind", [".parquet", ".arrow"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, kind: str) -> None:
    file = tmp_path / f"damaged{kind}"
    file.write_bytes(content)
    with pytest.raises(UnusableInput, match=r"damaged\.(parquet|arrow)"):
        list(read_cases(file, kind))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="cannot be read"):
        table_kind(tmp_path / "none.parquet")


def test_pyarrow_missing_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnusableInput, match=r"vllm-admission\[arrow\]"):
        list(read_cases(tmp_path / "a.parquet", ".parquet"))
    with pytest.raises(UnusableInput, match=r"vllm-admission\[arrow\]"):
        ArrowSink(tmp_path / "a.parquet", ".parquet")


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_rows_are_written_in_groups(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_ROWS_A_GROUP", 3)
    kind = kind_of_name(tmp_path / name)
    assert kind is not None
    sink = ArrowSink(tmp_path / name, kind)
    for number in range(5):
        columns: dict[str, list[Any]] = {field.name: [None] * 2 for field in sink.schema}
        columns |= {"id": [{"a": number}] * 2, "line": [number] * 2, "failed": [[], ["x"]]}
        sink.write(columns)
    sink.close()
    read_back = (
        parquet.read_table(tmp_path / name)
        if kind == ".parquet"
        else pa.ipc.open_file(str(tmp_path / name)).read_all()
    )
    rows = read_back.to_pylist()
    assert len(rows) == 10
    assert (rows[3]["id"], rows[3]["line"], rows[3]["failed"]) == ('{"a": 1}', 1, ["x"])
