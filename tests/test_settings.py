"""Settings with wrong values end the start with a clear message, and status 2."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.errors import UnusableInput
from app.main import create_app
from app.settings import Settings, read_settings, unknown_variables

NUMBERS = [
    name
    for name, field in Settings.model_fields.items()
    if any(kind in str(field.annotation) for kind in ("int", "float")) and "dict" not in str(field)
]


def refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> str:
    monkeypatch.setenv(f"VLLM_ADMISSION_{name.upper()}", value)
    with pytest.raises(UnusableInput) as error:
        create_app(read_settings())
    return str(error.value)


@pytest.mark.parametrize("value", ["banana", "-2", "nan", "inf", "1e999", "9" * 23])
@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_that_cannot_be_used_is_taken(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert f"VLLM_ADMISSION_{name.upper()}" in refused(monkeypatch, name, value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("backend_url", "localhost:8000", "must begin with http:// or https://"),
        ("backend_url", "http://[", "is no"),
        ("backend_url", "http://vllm:99999", "is no URL"),
        ("backend_url", "http://my vllm:8000", "is no host"),
        ("hub_url", "huggingface.co", "must begin with http:// or https://"),
        ("hub_url", "http://hub:port", "is no URL"),
        ("model_root", "/does/not/exist", "is no directory"),
        ("request_rules", "{", "VLLM_ADMISSION_REQUEST_RULES is no JSON"),
        ("request_rules", '{"request-n-limit": "rejct"}', "rejct"),
        ("request_rules", "[]", "VLLM_ADMISSION_REQUEST_RULES"),
        ("limits", '{"max_logprob": 5}', "did you mean 'max_logprobs'?"),
        ("limits", '{"max_logprobs": "many"}', "VLLM_ADMISSION_LIMITS (max_logprobs)"),
        ("profile", "lax", "VLLM_ADMISSION_PROFILE"),
        ("inject_seed", "perhaps", "VLLM_ADMISSION_INJECT_SEED"),
    ],
)
def test_it_is_said_which_variable_is_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    assert says in refused(monkeypatch, name, value)


@pytest.mark.parametrize("arguments", [("serve", "--port", "0"), ("validate", "-")])
def test_the_command_ends_with_2_and_without_a_traceback(arguments: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from app.cli import main; main()", *arguments],
        env={**os.environ, "VLLM_ADMISSION_MAX_QUEUE": "x", "VLLM_ADMISSION_WORKERS": "0"},
        input="vllm serve m",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "VLLM_ADMISSION_MAX_QUEUE: " in ended.stderr
    assert "VLLM_ADMISSION_WORKERS: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_misspelt_variable_is_told_of_and_what_kubernetes_adds_is_not() -> None:
    environment = (
        "VLLM_ADMISSION_REQUEST_RULE",
        "VLLM_ADMISSION_MAX_QUEUE",
        "VLLM_ADMISSION_SERVICE_HOST",
        "VLLM_ADMISSION_SERVICE_PORT_HTTP",
        "VLLM_ADMISSION_PORT",
        "VLLM_ADMISSION_PORT_8080_TCP_ADDR",
        "VLLM_ADMISSION_LAB_HOME",
        "VLLM_USE_V1",
    )
    assert unknown_variables(environment) == {
        "VLLM_ADMISSION_REQUEST_RULE": "VLLM_ADMISSION_REQUEST_RULES"
    }
