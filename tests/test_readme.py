"""The README's commands, run as a reader would run them, against the demo it starts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import start_command

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


@dataclass
class Example:
    """One `$ command` with the output that the README shows; `…` stands for anything."""

    command: str
    output: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(".*?".join(map(re.escape, self.output.split("…"))), re.DOTALL)


def examples(page: Path = README) -> list[Example]:
    """Read the console blocks that show output."""
    found: list[Example] = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, output = [], part.splitlines(keepends=True)
            while output:
                command.append(output.pop(0))
                if not command[-1].endswith("\\\n"):
                    break
            found.append(Example("".join(command).strip(), "".join(output)))
    return found


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """The demo, on a free port."""
    with start_command("demo", "--port", "0") as urls:
        yield urls["vllm-admission"]


def environment(tmp_path: Path) -> dict[str, str]:
    """The reader's PATH: the project's own commands, and curl if the machine has none."""
    binaries = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if shutil.which("curl") is None:
        binaries.insert(0, str(ROOT / "tests" / "tools"))
    return {**os.environ, "PATH": os.pathsep.join(binaries), "HOME": str(tmp_path)}


def test_the_readme_shows_each_gate() -> None:
    text = "\n".join(example.command for example in examples())
    for path in ("/validate", "/inference/v1/generate", "/replay"):
        assert path in text


def test_the_readmes_commands_print_what_it_shows(demo: str, tmp_path: Path) -> None:
    for example in examples():
        if example.command.startswith("make "):
            continue  # make demo is what the fixture runs; make test is running this
        command = example.command.replace("http://127.0.0.1:8080", demo)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
        )
        shown = done.stdout + done.stderr
        assert example.pattern.fullmatch(shown), f"$ {command}\n{shown}"


def test_make_demo_is_what_the_fixture_runs() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    recipe = lines[next(i for i, line in enumerate(lines) if line.startswith("demo:")) + 1]
    assert recipe.strip() == "$(BIN)/vllm-admission demo"


def test_the_demo_ends_at_a_signal() -> None:
    for ending in (signal.SIGTERM, signal.SIGINT):
        with start_command("demo", "--port", "0", ending=ending):
            pass
