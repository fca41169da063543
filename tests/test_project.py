"""The project's own files: settings documented, container and compose as they should be."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.rules.evaluate import validate
from app.settings import Settings, settings_markdown

ROOT = Path(__file__).parents[1]


def test_the_settings_page_is_up_to_date() -> None:
    kept = (ROOT / "docs" / "settings.md").read_text()
    assert kept == settings_markdown(), "run `make docs`"
    for name, field in Settings.model_fields.items():
        assert field.description, name


def test_every_setting_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ADMISSION_BACKEND_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("VLLM_ADMISSION_IDLE_TIMEOUT", "3")
    assert Settings().backend_url == "http://127.0.0.1:1"
    assert Settings().idle_timeout == 3


def compose() -> dict[str, dict[str, object]]:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert isinstance(services, dict)
    return services


def test_composes_default_profile_is_the_gpu_one_and_demo_needs_no_gpu() -> None:
    assert (ROOT / ".env").read_text() == "COMPOSE_PROFILES=gpu\n"
    profiles = {name: service["profiles"] for name, service in compose().items()}
    assert [n for n, p in profiles.items() if p == ["gpu"]] == ["gate", "vllm"]
    assert [n for n, p in profiles.items() if p == ["demo"]] == ["gate-demo", "simulator"]


def test_composes_backend_runs_with_what_the_gate_admits() -> None:
    services = compose()
    environment = services["gate"]["environment"]
    assert isinstance(environment, dict)
    text = environment["VLLM_ADMISSION_SERVE_CONFIG"]
    assert text == services["vllm"]["command"] == services["simulator"]["command"]
    catalogue = CatalogueLibrary().get(environment["VLLM_ADMISSION_VLLM_VERSION"])
    assert str(services["vllm"]["image"]).endswith(f":v{catalogue.vllm_version}")
    assert validate(parse_command(text), catalogue).accepted


@pytest.mark.parametrize("name", ["gate", "gate-demo", "simulator"])
def test_composes_containers_are_locked_down(name: str) -> None:
    service = compose()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]


def test_the_image_runs_as_a_number_without_a_shell_and_writes_nothing() -> None:
    text = (ROOT / "Dockerfile").read_text()
    final = text[text.rindex("FROM ") :]
    assert re.search(r"^USER (\d+):\1$", final, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["vllm-admission"\]$', final, re.MULTILINE)
    assert "PYTHONDONTWRITEBYTECODE=1" in final
    assert "RUN" not in final


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [
        re.split(r"[\[<>=!;]", entry)[0].strip()
        for entry in (*project["dependencies"], *project["optional-dependencies"]["dev"])
    ]
    pinned = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    assert [n for n in names if f"{n.lower()}==" not in pinned] == []


def test_no_tracked_file_names_this_workplace() -> None:
    done = subprocess.run(
        ["git", "grep", "-nIE", r"/(work|root)/|file://|index-url|find-links"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    hits = [h for h in done.stdout.splitlines() if not h.startswith("tests/test_project.py:")]
    assert hits == []


def test_the_service_needs_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, app.cli, app.serving; "
        "print([m for m in ('torch', 'vllm', 'scipy') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
