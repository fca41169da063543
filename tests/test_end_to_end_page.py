"""docs/end_to_end.md, run as a reader would run it, against the demo it starts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.relay.inline.outcome import Skipped
from app.settings import Settings
from tests.support import start_command
from tests.test_readme import ROOT, environment, examples

PAGE = ROOT / "docs" / "end_to_end.md"
TEXT = PAGE.read_text()


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    (line,) = re.findall(r"^(.*) vllm-admission demo$", TEXT, re.MULTILINE)
    variables = dict(word.split("=", 1) for word in line.split())
    with start_command("demo", "--port", "0", env=variables) as urls:
        yield urls["vllm-admission"]


def test_the_commands_print_what_the_page_shows(demo: str, tmp_path: Path) -> None:
    shown = examples(PAGE)
    assert len(shown) >= 6
    for example in shown:
        address = "http://127.0.0.1:8080"
        done = subprocess.run(
            ["sh", "-c", example.command.replace(address, demo)],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
        )
        output = (done.stdout + done.stderr).replace(demo, address)
        assert example.pattern.fullmatch(output), f"$ {example.command}\n{output}"


def test_the_page_knows_every_reason_and_setting() -> None:
    for reason in set(Skipped) - {Skipped.INCOMPLETE}:
        assert f"`{reason.value}`" in TEXT
    for name in ("inject_seed", "replay_sample", "replay_buffer_bytes", "replay_queue"):
        assert name in Settings.model_fields
        assert f"VLLM_ADMISSION_{name.upper()}" in TEXT
