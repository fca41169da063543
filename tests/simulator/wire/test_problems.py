from __future__ import annotations

from typing import Any

import pytest

from app.simulator.settings import SimulatorSettings
from app.simulator.wire.dialect import Dialect
from app.simulator.wire.problems import body_error, dotted, sanitised

NEW = Dialect.of(SimulatorSettings())
OLD = Dialect.of(SimulatorSettings(vllm_version="0.28.0"))


def _error(value: Any, *loc: str | int) -> dict[str, Any]:
    return {"type": "int_parsing", "loc": ("body", *loc), "msg": "No", "input": value}


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        (("body", "token_ids", 3), "body.token_ids.3"),
        (("body", "prompt", "list[constrained-int]", 0), "body.prompt.0"),
        (("body", "function-wrap[__log_extra_fields__()]", "prompt"), "body.prompt"),
        (("body", "stop", "str"), "body.stop"),
        (("list",), "list"),
    ],
)
def test_paths_leave_out_what_is_no_field(loc: tuple[str | int, ...], path: str) -> None:
    assert dotted(loc) == path


def test_old_versions_show_everything() -> None:
    refusal = body_error([_error([1, "a"], "x", 1)] * 12, OLD)

    assert refusal.message.count("\n") == 12
    assert "('body', 'x', 1)" in refusal.message
    assert "[1, 'a']" in refusal.message
    assert refusal.param == "body.x.1"


def test_new_versions_show_ten_errors_and_a_summary_of_the_input() -> None:
    refusal = body_error([_error([1, "a"], "x", 1)] * 12, NEW)

    assert refusal.message.startswith("12 validation errors:\n")
    assert refusal.message.endswith("...and 2 more errors")
    assert "'loc': 'body.x.1'" in refusal.message
    assert "'<list of 2 items>'" in refusal.message


def test_long_inputs_are_cut_by_new_versions() -> None:
    refusal = body_error([_error("x" * 5000, "y")], NEW)

    assert "x" * 200 + "...[truncated]" in refusal.message
    assert len(refusal.message) < 1200


def test_what_looks_like_a_path_is_hidden() -> None:
    assert sanitised("open /srv/models/tiny.bin now") == "open <path> now"
