"""The rule pages say what the declarations say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.rules.docs import pages, write
from app.rules.registry import default_registry, rules_in, run
from app.serve_config.resolve import resolve

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "rules"


def test_the_pages_in_the_repository_are_what_would_be_generated() -> None:
    expected = pages(default_registry().declarations)
    written = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert written == dict(expected), "run `python -m app.rules.docs`"


def test_every_link_of_the_index_has_its_page() -> None:
    texts = pages(default_registry().declarations)
    links = re.findall(r"\]\(([^)]+)\)", texts["README.md"])
    assert set(links) == texts.keys() - {"README.md"}


def test_the_example_for_contributors_is_a_working_rule(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    (example,) = rules_in(tmp_path)
    real = default_registry().by_id[example.id]
    for member in ("title", "severity", "area", "source", "versions"):
        assert getattr(example.declaration, member) == getattr(real, member)
    catalogue = CatalogueLibrary().get("0.32.0")
    for cases, expected in ((example.declaration.bad, 1), (example.declaration.good, 0)):
        for case in cases:
            proposal = replace(parse_command(case.text), model_config=case.model_config)
            config = resolve(proposal, catalogue).config
            assert config is not None
            findings, _ = run([example], config)
            assert [f.rule for f in findings] == [example.id] * expected


def test_writing_removes_the_page_of_a_rule_that_is_no_more(tmp_path: Path) -> None:
    (tmp_path / "old-rule.md").write_text("gone")
    write(tmp_path)
    assert not (tmp_path / "old-rule.md").exists()
    assert (tmp_path / "README.md").exists()
