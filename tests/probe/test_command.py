"""`vllm-admission probe`, as a process would be started."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from app.cli import main
from tests.probe.scene import simulator
from tests.simulator.serving import serving
from tests.tampering import TokenSwapper

SMALL = ["--requests", "4", "--max-tokens", "6", "--prompt-length", "3", "--prompt-length", "5"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vllm-admission", "probe", *argv])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


def test_a_consistent_backend_exits_0(run: Run) -> None:
    with serving(simulator()) as url:
        code, out, _ = run("--backend", url, *SMALL)
    assert code == 0
    assert out.startswith(f"consistent: vLLM 0.32.0 at {url}, model tiny\n  4 of 4 requests")


def test_a_tampering_backend_exits_1(run: Run) -> None:
    with serving(simulator(TokenSwapper)) as url:
        code, out, _ = run("--backend", url, *SMALL, "--format", "json")
    assert code == 1
    assert json.loads(out)["findings"][0]["rule"] == "replay-draw"


def test_failed_requests_exit_3(run: Run) -> None:
    with serving(simulator(max_logprobs=10)) as url:
        code, out, _ = run("--backend", url, *SMALL, "--requests", "14")
    assert code == 3
    assert out.startswith("unproven")


def test_the_backend_may_come_from_the_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(simulator(use_fp64_gumbel=True)) as url:
        monkeypatch.setenv("VLLM_ADMISSION_BACKEND_URL", url)
        assert run(*SMALL)[0] == 1
        command = (
            "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs "
            "--enable-scale-out --use-fp64-gumbel"
        )
        monkeypatch.setenv("VLLM_ADMISSION_SERVE_CONFIG", command)
        monkeypatch.setenv("VLLM_ADMISSION_VLLM_VERSION", "0.32.0")
        assert run(*SMALL)[0] == 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "--backend"),
        (["--backend", "localhost:8000"], "must begin with http://"),
        (["--backend", "http://127.0.0.1:1"], "cannot be reached"),
        (["--backend", "http://127.0.0.1:1", "--token-ids", "9:3"], "LOW:HIGH"),
        (["--backend", "http://127.0.0.1:1", "--requests", "0"], "--requests"),
    ],
)
def test_what_cannot_be_probed_exits_2_and_says_why(run: Run, argv: list[str], says: str) -> None:
    code, _, err = run(*argv)
    assert code == 2
    assert says in err


def test_a_refused_configuration_exits_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ADMISSION_SERVE_CONFIG", "vllm serve m --return-sampling-mask")
    code, _, err = run("--backend", "http://127.0.0.1:1")
    assert code == 2
    assert "would not start" in err
