from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.admitted import admit
from app.catalogue import CatalogueLibrary
from app.settings import Settings
from app.verdict.verdict import Outcome

GOOD = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"


@pytest.fixture(scope="module")
def library() -> CatalogueLibrary:
    return CatalogueLibrary()


def test_nothing_configured_is_ready_and_admits_nothing(library: CatalogueLibrary) -> None:
    admitted = admit(Settings(), library)
    assert admitted.config is None
    assert admitted.reason is None


def test_an_inline_command_is_admitted(library: CatalogueLibrary) -> None:
    admitted = admit(Settings(serve_config=GOOD, vllm_version="0.32.0"), library)
    assert admitted.reason is None
    assert admitted.config is not None
    assert admitted.config["return_sampling_mask"] is True
    assert admitted.config.catalogue.vllm_version == "0.32.0"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("serve.sh", GOOD),
        ("serve.yaml", "model: m\nreturn-sampling-mask: true\nlogprobs-mode: processed_logprobs\n"),
        ("serve.json", json.dumps({"command": GOOD, "vllm_version": "0.31.0"})),
    ],
)
def test_a_file_of_any_form_is_admitted(
    library: CatalogueLibrary, tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    admitted = admit(Settings(serve_config=str(path), vllm_version="0.31.0"), library)
    assert admitted.config is not None
    assert admitted.config["logprobs_mode"] == "processed_logprobs"


def test_the_envelopes_version_wins(library: CatalogueLibrary) -> None:
    text = json.dumps({"command": GOOD, "vllm_version": "0.31.0"})
    admitted = admit(Settings(serve_config=text, vllm_version="0.32.0"), library)
    assert admitted.verdict is not None
    assert admitted.verdict.vllm_version == "0.31.0"


def test_a_rejected_configuration_gives_the_reason(library: CatalogueLibrary) -> None:
    admitted = admit(Settings(serve_config="vllm serve m --max-logprobs -2"), library)
    assert admitted.config is None
    assert admitted.verdict is not None
    assert admitted.verdict.outcome is Outcome.REJECTED
    assert admitted.reason is not None
    assert "max_logprobs" in admitted.reason or "max-logprobs" in admitted.reason


@pytest.mark.parametrize(
    "text",
    ["vllm serve 'm", json.dumps({"command": GOOD, "vllm_versions": ["0.31.0", "0.32.0"]})],
    ids=["unclosed", "two-versions"],
)
def test_an_unreadable_configuration_gives_the_reason(library: CatalogueLibrary, text: str) -> None:
    admitted = admit(Settings(serve_config=text), library)
    assert admitted.config is None
    assert admitted.reason is not None
    assert "VLLM_ADMISSION_SERVE_CONFIG" in admitted.reason


def test_a_file_that_is_not_text_gives_the_reason(
    library: CatalogueLibrary, tmp_path: Path
) -> None:
    path = tmp_path / "serve.sh"
    path.write_bytes(b"vllm serve \xff")
    admitted = admit(Settings(serve_config=str(path)), library)
    assert admitted.reason is not None
    assert "UTF-8" in admitted.reason


def test_the_image_says_the_version_unless_the_setting_does(library: CatalogueLibrary) -> None:
    text = "docker run vllm/vllm-openai:v0.31.0 m"
    admitted = admit(Settings(serve_config=text), library)
    assert admitted.verdict is not None
    assert admitted.verdict.vllm_version == "0.31.0"
    told = admit(Settings(serve_config=text, vllm_version="0.32.0"), library)
    assert told.verdict is not None
    assert told.verdict.vllm_version == "0.32.0"


def test_several_services_are_no_one_backend(library: CatalogueLibrary) -> None:
    service = "{image: 'vllm/vllm-openai:v0.32.0', command: [m]}"
    text = f"services:\n  a: {service}\n  b: {service}\n"
    admitted = admit(Settings(serve_config=text), library)
    assert admitted.reason is not None
    assert "several are in this: a, b" in admitted.reason
