"""docs/replay.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from app.replay.declarations import DECLARATIONS
from app.replay.report import ReplayVerdict, replay
from app.replay.rows import Reason
from tests.replay.corruptions import KINDS

TEXT = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()


def test_the_example_is_consistent() -> None:
    (case,) = re.findall(r"-d '(\{.*?\n\})'", TEXT, re.DOTALL)
    assert replay(case).verdict is ReplayVerdict.CONSISTENT


def test_every_check_is_listed() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `replay-")]
    listed = re.findall(r"`(replay-[a-z-]+)`", "\n".join(rows))
    assert sorted(listed) == sorted(d.id for d in DECLARATIONS)


def test_every_reason_is_listed() -> None:
    for reason in Reason:
        assert reason.value.split(":")[0] in TEXT


def test_every_corruption_is_in_the_table_of_power() -> None:
    table = (Path(__file__).parents[2] / "docs" / "replay_power.md").read_text()
    listed = re.findall(r"^\| ([^|`]+) \| (?:-|\d\.\d\d) \|", table, re.MULTILINE)
    assert listed == [kind.name for kind in KINDS]
