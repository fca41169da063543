"""Every row says how its draw ended and what it failed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.replay.report import report_on
from app.replay.rows_detail import RowTable, row_table
from app.replay.wire.case import read_case
from tests.replay.engine import Engine

Case = dict[str, Any]


def tables_of(case: Case) -> list[RowTable]:
    tables: list[RowTable] = []
    report_on(read_case(case), lambda *seen: tables.append(row_table(*seen)))
    return tables


def test_positions_gaps_and_masses_of_honest_rows() -> None:
    case = Engine().case(top_k=8, logprobs=8, max_tokens=20, prompt=5, n=2)
    tables = tables_of(case)
    assert [table.choice for table in tables] == [0, 1]
    for table, choice in zip(tables, case["response"]["choices"], strict=True):
        rows = list(table.records())
        assert [row["position"] for row in rows] == list(range(4, 24))
        assert [row["token_id"] for row in rows] == choice["token_ids"]
        assert [row["mask_size"] for row in rows] == [len(m) for m in choice["sampling_mask"]]
        assert all(row["outcome"] == "exact" and row["reason"] is None for row in rows)
        assert all(row["gap"] > row["tolerance"] for row in rows)
        assert np.allclose(table.kept_mass, 1.0, atol=1e-4)
        assert not any(row["failed"] for row in rows)


def test_a_changed_row_names_what_it_failed() -> None:
    case = Engine().case(top_k=8, logprobs=8, max_tokens=20)
    case["response"]["choices"][0]["token_ids"][3] = 47_000
    (table,) = tables_of(case)
    rows = list(table.records())
    assert rows[3]["outcome"] == "mismatch"
    assert {"replay-alignment", "replay-sampled-in-mask", "replay-draw"} <= set(rows[3]["failed"])
    assert not any(row["failed"] for row in rows[:3] + rows[4:])


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [({"seed": None}, "no_seed"), ({"logprobs": None}, "no_logprobs")],
)
def test_undecidable_rows_say_why(sampling: Case, reason: str) -> None:
    case = Engine().case(**{"top_k": 8, "logprobs": 8, "max_tokens": 20, **sampling})
    (table,) = tables_of(case)
    undecidable = [row for row in table.records() if row["outcome"] == "undecidable"]
    assert undecidable
    assert {row["reason"] for row in undecidable} == {reason}
    if reason == "no_logprobs":
        assert all(row["kept_mass"] is None for row in undecidable)
    else:
        assert all(row["gap"] is None for row in undecidable)


def test_without_a_prompt_length_there_are_no_positions() -> None:
    case = Engine().case(top_k=8, logprobs=8, max_tokens=3)
    del case["request"]["token_ids"], case["response"]["usage"]
    (table,) = tables_of(case)
    assert [row["position"] for row in table.records()] == [None] * 3
