"""docs/statistics.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.replay.statistics.known_rows import LeftOut
from app.replay.statistics.likelihood import POWERS
from app.replay.trainer_diagnosis import Diagnosis
from app.replay.wire.analysis import AnalysisBody

TEXT = (Path(__file__).parents[3] / "docs" / "statistics.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        *AnalysisBody.__struct_fields__,
        *(reason.value for reason in LeftOut),
        *(diagnosis.value for diagnosis in Diagnosis),
    ],
)
def test_every_name_is_explained(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_the_number_of_powers_is_right() -> None:
    assert f"{len(POWERS)} powers" in TEXT
