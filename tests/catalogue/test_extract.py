"""The extractor, run as a user runs it, on a vLLM of a few lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from tests.catalogue import miniature

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "app" / "catalogue" / "extract.py"


def run(
    *arguments: str | Path, path: Path, module: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    how = ["-m", "app.catalogue.extract"] if module else [str(SCRIPT)]
    return subprocess.run(
        [sys.executable, *how, *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(path), **variables},
        cwd=ROOT if module else path,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return miniature.write(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def extracted(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("out") / "vllm-fork.json"
    done = run("-o", output, path=vllm)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def facts(extracted: Path) -> dict[str, Any]:
    return dict(json.loads(extracted.read_text()))


def flag(facts: dict[str, Any], dest: str) -> dict[str, Any]:
    return next(dict(f) for f in facts["flags"] if f["dest"] == dest)


def test_what_is_extracted_is_a_catalogue_that_the_library_reads(extracted: Path) -> None:
    catalogue = CatalogueLibrary(extracted.parent).get(miniature.VERSION)
    assert catalogue.vllm_version == "0.99.0+fork"
    assert catalogue.by_option["--block-size"].config_field == "block_size"


def test_a_flag_is_tied_to_the_field_it_fills_and_carries_no_help(facts: dict[str, Any]) -> None:
    found = flag(facts, "block_size")
    assert (found["config_class"], found["config_field"]) == ("CacheConfig", "block_size")
    assert "Help of the original" not in json.dumps(facts)
    assert "A description" not in json.dumps(facts)


def test_a_converter_without_a_name_is_unknown_and_noted(facts: dict[str, Any]) -> None:
    assert flag(facts, "sheep")["conv"] == "unknown"
    assert "converter of sheep: parse_sheep" in facts["not_captured"]
    assert flag(facts, "overrides")["of"] == {"conv": "json"}


def test_names_that_only_the_help_lists_are_suggestions(facts: dict[str, Any]) -> None:
    assert flag(facts, "sheep")["suggested"] == ["dolly", "molly"]
    assert "choices" not in flag(facts, "sheep")


def test_the_rules_of_a_fork_are_kept_under_their_own_words(facts: dict[str, Any]) -> None:
    messages = facts["replay"]["messages"]
    assert messages["needs_v2_runner"] == "replay wants the second runner"
    assert messages["temperature"] == "replay wants warmth"
    assert messages["replay_does_not_dream"] == "replay does not dream"
    assert "not about replay" not in messages.values()


def test_a_model_class_that_ends_its_process_costs_only_itself(facts: dict[str, Any]) -> None:
    assert facts["model_abilities"] == {
        "is_hybrid": ["AHybridForCausalLM"],
        "not_inspected": ["BCrashingForCausalLM", "CMissingForCausalLM"],
        "read_in_source": ["is_hybrid"],
        "supports_lora": ["DPlainForCausalLM"],
    }
    notes = "\n".join(facts["not_captured"])
    assert "model class BCrashingForCausalLM: importing it ended the process" in notes
    assert "model class CMissingForCausalLM: ModuleNotFoundError" in notes


def test_what_cannot_be_read_is_noted_without_paths(facts: dict[str, Any]) -> None:
    notes = facts["not_captured"]
    assert any(n.startswith("registry tool_parsers: ModuleNotFoundError") for n in notes)
    assert "environment variable VLLM_STRANGE: parsing not recognised" in notes
    assert "transformers_utils/config.py is not in this version" in notes
    assert "attention backend MISSING: ImportError: no kernels in here" in notes


def test_the_script_writes_to_standard_output_what_the_module_writes_to_a_file(
    vllm: Path, extracted: Path
) -> None:
    done = run(path=vllm, module=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == extracted.read_text()


def test_the_version_can_be_named_and_models_left_out(vllm: Path) -> None:
    done = run("--version", "0.99.1+mine", "--no-models", "--note", "in a tent", path=vllm)
    facts = json.loads(done.stdout)
    assert facts["capture_note"] == "in a tent"
    assert facts["vllm_version"] == "0.99.1+mine"
    assert facts["model_abilities"] == {}


def test_a_machine_without_a_device_is_taken_for_one_of_the_builds_platform(vllm: Path) -> None:
    done = run("--platform", "cuda", "--no-models", path=vllm, MINIATURE_PLATFORM="UNSPECIFIED")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["captured_on_platform"] == "cuda"
    assert facts["not_captured"][0].startswith("no device was seen: captured as cuda")


def test_two_captures_are_merged_without_any_vllm(extracted: Path, tmp_path: Path) -> None:
    other = json.loads(extracted.read_text())
    other["captured_on_platform"] = "cpu"
    next(f for f in other["flags"] if f["dest"] == "block_size")["default"] = 128
    second = tmp_path / "cpu.json"
    second.write_text(json.dumps(other))
    done = run("--merge", extracted, "--platform-override", second, path=tmp_path)
    assert done.returncode == 0, done.stderr
    merged = json.loads(done.stdout)
    assert merged["platform_overrides"] == {"cpu": {"flags": {"block_size": {"default": 128}}}}


def test_without_vllm_the_answer_is_a_sentence(tmp_path: Path) -> None:
    done = run("-o", tmp_path / "x.json", path=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("extract: NoVllm: vLLM does not import: ModuleNotFoundError")
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '"x"'])
def test_a_file_that_is_no_catalogue_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    done = run("--merge", path, path=tmp_path)
    assert done.returncode == 1
    assert f"{path} is not a catalogue" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_extractor_needs_none_of_the_projects_dependencies() -> None:
    code = (
        "import sys, app.catalogue.extract as e\n"
        "third = {'msgspec', 'packaging', 'pydantic', 'yaml', 'fastapi', 'numpy', 'structlog'}\n"
        "print(sorted(third & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
