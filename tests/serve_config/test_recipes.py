"""Published command lines are taken where vLLM's own parser takes them, and only there.

`python -m lab.recipes` recorded what every version's parser and serve-argument checks say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.proposal.envelope import read_envelope
from app.serve_config.resolve import Resolution, resolve
from tests.serve_config.reading import LIBRARY, VERSIONS, errors

_ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("recipes.jsonl").read_text().splitlines()
]
# The file is on the machine of whoever published the recipe, and vLLM was asked elsewhere.
_NO_SUCH_FILE = "chat_template"


def _read(row: dict[str, Any], version: str) -> Resolution:
    members = {"args": row["args"], "env": row.get("env", {})}
    return resolve(read_envelope(members).proposal, LIBRARY.get(version))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recipe_is_taken_where_vllm_takes_it(version: str) -> None:
    refused = {
        row["id"]: [f.message for f in errors(_read(row, version))]
        for row in _ROWS
        if version not in row["refused"]
    }
    assert {recipe: messages for recipe, messages in refused.items() if messages} == {}
    assert len(refused) > 400


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recipe_that_vllm_refuses_is_not_taken(version: str) -> None:
    taken = []
    for row in _ROWS:
        said = row["refused"].get(version)
        if said is None:
            continue
        resolution = _read(row, version)
        if _NO_SUCH_FILE in said:
            assert any(f.rule == "serve-chat-template-file" for f in resolution.findings)
        elif not errors(resolution) and not any(f.undecided for f in resolution.findings):
            taken.append(row["id"])
    assert taken == []


def test_there_are_recipes_of_both_kinds() -> None:
    assert len(_ROWS) == 438
    assert 20 < sum(bool(row["refused"]) for row in _ROWS) < 40
