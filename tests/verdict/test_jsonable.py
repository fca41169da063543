from __future__ import annotations

import json
import math

from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag
from app.verdict.jsonable import jsonable
from app.verdict.render.jsonl import render_jsonl
from app.verdict.render.sarif import render_sarif
from app.verdict.verdict import Verdict


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_what_json_can_hold_is_left_as_it_is() -> None:
    value = {"a": [1, 2.5, None, True, "x"]}
    assert jsonable(value) is value


def test_what_json_cannot_hold_becomes_a_string() -> None:
    value = {"a": [math.nan, math.inf, -math.inf], "b": 1 + 2j}
    assert jsonable(value) == {"a": ["NaN", "Infinity", "-Infinity"], "b": "(1+2j)"}


def test_every_json_format_is_strict_json() -> None:
    edit = SetFlag("seed", math.nan)
    finding = Finding(
        rule="r",
        severity=Severity.ERROR,
        message="m",
        evidence={"value": math.inf},
        fix=Fix("set it", (edit,), safe=True),
    )
    verdict = Verdict.of(
        "0.32.0",
        [finding],
        settings={"given": {"seed": {"value": math.nan}}},
        corrected={"config": {"seed": -math.inf}},
        id=math.inf,
    )
    for text in (render_jsonl([verdict]), render_sarif([verdict]), json.dumps(verdict.as_json())):
        json.loads(text, parse_constant=refuse)
