"""docs/evidence.md shows every form, and every example in it is consistent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.api.replay_schemas import ReplayRow
from app.replay.report import ReplayVerdict, replay
from app.replay.wire.generate import ChoiceBody

TEXT = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
(CASE,) = re.findall(r"```json case\n(.*?)```", TEXT, re.DOTALL)
FORMS = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("form", FORMS)
def test_every_example_is_consistent(form: str) -> None:
    case = {**json.loads(CASE), **json.loads(form)}
    for given in (case, json.dumps(case)):
        report = replay(given)
        assert report.verdict is ReplayVerdict.CONSISTENT, report.findings
        assert report.rows["exact"] >= 2
        assert not report.findings


def test_every_member_is_shown_or_named() -> None:
    for member in ChoiceBody.__struct_fields__:
        if member not in {"text", "sampled_logprobs"}:
            assert member in TEXT
    for column in ReplayRow.model_fields:
        assert f"`{column}`" in TEXT
