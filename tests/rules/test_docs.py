"""The rule pages say what the declarations say."""

from __future__ import annotations

import re
from pathlib import Path

from app.rules.docs import pages, write
from app.rules.registry import default_registry

DOCS = Path(__file__).parents[2] / "docs" / "rules"


def test_the_pages_in_the_repository_are_what_would_be_generated() -> None:
    expected = pages(default_registry().declarations)
    written = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert written == dict(expected), "run `python -m app.rules.docs`"


def test_every_link_of_the_index_has_its_page() -> None:
    texts = pages(default_registry().declarations)
    links = re.findall(r"\]\(([^)]+)\)", texts["README.md"])
    assert set(links) == texts.keys() - {"README.md"}


def test_writing_removes_the_page_of_a_rule_that_is_no_more(tmp_path: Path) -> None:
    (tmp_path / "old-rule.md").write_text("gone")
    write(tmp_path)
    assert not (tmp_path / "old-rule.md").exists()
    assert (tmp_path / "README.md").exists()
