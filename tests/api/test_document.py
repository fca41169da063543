from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from openapi_spec_validator import validate as validate_specification

from app.api import document
from app.api.schemas import ProposalEnvelope
from app.main import create_app
from app.proposal.envelope import read_envelope
from app.settings import Settings

KEPT = Path(__file__).parents[2] / "openapi" / "openapi.json"


def test_the_kept_document_is_the_running_apps() -> None:
    assert KEPT.read_text() == document.render(create_app(Settings())), "run `make docs`"


def test_the_document_is_valid_openapi() -> None:
    validate_specification(json.loads(KEPT.read_text()))


def test_every_operation_of_ours_documents_its_failures() -> None:
    paths = json.loads(KEPT.read_text())["paths"]
    assert {"/validate", "/replay", "/rules", "/versions", "/readyz"} <= paths.keys()
    for path in ("/validate", "/replay"):
        assert "application/problem+json" in paths[path]["post"]["responses"]["400"]["content"]


def test_the_envelope_in_the_document_is_the_one_that_is_read() -> None:
    members = {
        "id": 1,
        "env": {"A": "1"},
        "files": {"c.yaml": "port: 1"},
        "vllm_version": "0.32.0",
        "vllm_versions": ["0.32.0"],
        "model_config": {},
        "draft_model_config": {},
        "hardware": {"gpu": "H100", "count": 8},
        "ignore": [{"rule": "env-unknown", "reason": "ours"}],
        "profile": "strict",
    }
    forms = {
        "args": ["m"],
        "command": "vllm serve m",
        "config": {},
        "config_yaml": "model: m",
        "compose": "services: {a: {image: vllm/vllm-openai}}",
        "kubernetes": "containers: [{image: vllm/vllm-openai}]",
        "python": "LLM('m')",
    }
    documented = {f.alias or name for name, f in ProposalEnvelope.model_fields.items()}
    assert documented == members.keys() | forms.keys()
    for form, value in forms.items():
        for name in members.keys() - {"files", "vllm_versions"}:
            read_envelope({form: value, name: members[name]})


def test_the_document_can_be_written_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["document", str(tmp_path / "openapi.json")])
    document.main()
    monkeypatch.setattr(sys, "argv", ["document"])
    document.main()
    assert capsys.readouterr().out == (tmp_path / "openapi.json").read_text() == KEPT.read_text()
