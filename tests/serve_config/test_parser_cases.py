"""Our reading against vLLM's own, as `lab/parser_cases.py` recorded it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.proposal.envelope import read_envelope
from app.serve_config.resolve import Resolution, resolve
from app.serve_config.serve_config import Origin
from tests.serve_config.reading import LIBRARY, errors

_RECORDED = sorted((Path(__file__).parent / "parser_cases").glob("*.jsonl"))
# vLLM's own values of a setting; what is not here is the setting itself.
_CHANGED_LATER = {"max_model_len": (-1,)}


def _cases(path: Path) -> Iterator[tuple[dict[str, Any], Resolution]]:
    catalogue = LIBRARY.get(path.stem)
    for line in path.read_text().splitlines():
        case = json.loads(line)
        members = {"args": case.get("args", []), "env": case.get("env"), "files": case.get("files")}
        yield case, resolve(read_envelope(members).proposal, catalogue)


@pytest.mark.parametrize("path", _RECORDED, ids=lambda path: path.stem)
def test_nothing_that_vllm_accepts_is_rejected(path: Path) -> None:
    wrong = [
        (case, [f.message for f in errors(resolution)])
        for case, resolution in _cases(path)
        if case["accepted"] and errors(resolution)
    ]
    assert not wrong


@pytest.mark.parametrize("path", _RECORDED, ids=lambda path: path.stem)
def test_what_the_parser_refuses_is_rejected_or_left_open_for_a_missing_file(path: Path) -> None:
    wrong = [
        case
        for case, resolution in _cases(path)
        if case["stage"] in {"argparse", "serve-args"}
        and not errors(resolution)
        and not any(f.rule == "yaml-file-not-given" for f in resolution.findings)
    ]
    assert not wrong


@pytest.mark.parametrize("path", _RECORDED, ids=lambda path: path.stem)
def test_given_settings_have_the_values_that_vllm_ends_up_with(path: Path) -> None:
    compared, wrong = 0, []
    for case, resolution in _cases(path):
        for dest, expected in case.get("resolved", {}).items():
            config = resolution.config
            assert config is not None
            setting = config.setting(dest)
            if setting is None or setting.origin is Origin.DEFAULT:
                continue
            if setting.value in _CHANGED_LATER.get(dest, ()):
                continue
            compared += 1
            if setting.value != expected:
                wrong.append((case, dest, setting.value, expected))
    assert not wrong
    assert compared > 20


def test_the_record_covers_the_oldest_the_lab_s_and_the_newest_version() -> None:
    assert [path.stem for path in _RECORDED] == ["0.28.0", "0.32.0", "0.33.0"]
    for path in _RECORDED:
        assert len(path.read_text().splitlines()) > 600
