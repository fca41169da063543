"""The shipped catalogue is what the extractor makes of the released package."""

from __future__ import annotations

from pathlib import Path

from lab.catalogues import SHIPPED, catalogue
from lab.environment import Lab
from lab.tests.conftest import VERSION


def test_extracting_again_gives_the_shipped_file(tmp_path: Path) -> None:
    name = f"vllm-{VERSION}.json"

    catalogue(Lab.default(), VERSION, tmp_path / name)

    extracted, shipped = ((where / name).read_text().splitlines() for where in (tmp_path, SHIPPED))
    assert extracted == shipped
