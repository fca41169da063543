from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidEnvelope, MalformedDocument
from app.proposal.envelope import read_envelope
from app.proposal.proposal import Entrypoint, Form


def problems(data: object) -> dict[str | None, str]:
    with pytest.raises(InvalidEnvelope) as caught:
        read_envelope(data)
    return {p.pointer: p.detail for p in caught.value.problems}


def test_all_members_are_read() -> None:
    envelope = read_envelope(
        {
            "id": [1],
            "args": ["m", "--port", "1"],
            "env": {"A": "x", "B": 1, "C": None},
            "files": {"c.yaml": "port: 1"},
            "vllm_version": "0.32.0",
            "model_config": {"architectures": []},
            "draft_model_config": {"model_type": "eagle"},
            "hardware": {"gpu": "H100-80GB", "count": 8},
        }
    )
    proposal = envelope.proposal
    assert (envelope.id, envelope.vllm_versions) == ([1], ("0.32.0",))
    assert [w.text for w in proposal.words] == ["m", "--port", "1"]
    assert proposal.words[2].location.pointer == "/args/2"
    assert {n: v.value for n, v in proposal.environment.items()} == {"A": "x", "B": "1"}
    assert proposal.environment["A"].location.pointer == "/env/A"
    assert proposal.files == {"c.yaml": "port: 1"}
    assert proposal.model_config == {"architectures": []}
    assert proposal.draft_model_config == {"model_type": "eagle"}
    assert proposal.hardware is not None
    assert (proposal.hardware.gpu, proposal.hardware.count) == ("H100-80GB", 8)


@pytest.mark.parametrize(
    ("members", "form"),
    [
        ({"args": []}, Form.ARGS),
        ({"command": "vllm serve m"}, Form.COMMAND),
        ({"config": {"model": "m"}}, Form.CONFIG),
        ({"config_yaml": "model: m"}, Form.CONFIG_YAML),
    ],
)
def test_each_form_is_read(members: dict[str, Any], form: Form) -> None:
    assert read_envelope(members).proposal.form is form


def test_engine_kwargs_pass_no_command_line() -> None:
    assert read_envelope({"config": {}}).proposal.entrypoint is Entrypoint.ENGINE_ARGS


def test_several_versions_are_taken_once_each_in_order() -> None:
    envelope = read_envelope({"args": [], "vllm_versions": ["0.32.0", "0.28.0", "0.32.0"]})
    assert envelope.vllm_versions == ("0.32.0", "0.28.0")


@pytest.mark.parametrize(
    ("data", "pointer", "words"),
    [
        ([], "", "JSON object"),
        ({}, "", "it has none"),
        ({"args": [], "command": ""}, "", "args and command"),
        ({"args": [], "envv": {}}, "/envv", "did you mean 'env'"),
        ({"args": [], "a/b~": 1}, "/a~1b~0", "known keys"),
        ({"args": "m"}, "/args", "list of strings"),
        ({"args": ["m", 1]}, "/args/1", '"1"'),
        ({"args": ["a\0"]}, "/args/0", "without NUL"),
        ({"args": ["x"] * 10_001}, "/args", "at most"),
        ({"command": 1}, "/command", "a string"),
        ({"config": []}, "/config", "an object"),
        ({"args": [], "env": []}, "/env", "an object"),
        ({"args": [], "env": {"A": True}}, "/env/A", '"1"'),
        ({"args": [], "env": {"A": 1.5}}, "/env/A", '"1.5"'),
        ({"args": [], "env": {"A": []}}, "/env/A", "must be a string"),
        ({"args": [], "env": {"": "1"}}, "/env/", "not empty"),
        ({"args": [], "env": {"A=B": "1"}}, "/env/A=B", "without ="),
        ({"args": [], "env": {"A\0": None, "B": "\0"}}, "/env/B", "without NUL"),
        ({"args": [], "files": {"c": 1}}, "/files/c", "text of the file"),
        ({"args": [], "vllm_version": 3}, "/vllm_version", '"0.32.0"'),
        ({"args": [], "vllm_versions": []}, "/vllm_versions", "a list"),
        ({"args": [], "vllm_versions": [1]}, "/vllm_versions/0", "a string"),
        ({"args": [], "vllm_version": "1", "vllm_versions": ["1"]}, "/vllm_versions", "not both"),
        ({"args": [], "model_config": 1}, "/model_config", "an object"),
        ({"args": [], "hardware": {"gpus": 1}}, "/hardware/gpus", "gpu, count, memory_gib"),
        ({"args": [], "hardware": {"capability": "9"}}, "/hardware/capability", "such as"),
        ({"args": [], "hardware": {"memory_gib": 0}}, "/hardware/memory_gib", "above 0"),
        ({"args": [], "hardware": {"memory_in_use": 1}}, "/hardware/memory_in_use", "share"),
        ({"args": [], "hardware": {"nodes": 0}}, "/hardware/nodes", "1 or more"),
        ({"args": [], "hardware": {"gpu": 1}}, "/hardware/gpu", "product name"),
        ({"args": [], "hardware": {"count": True}}, "/hardware/count", "integer"),
        ({"args": [], "hardware": {"count": -1}}, "/hardware/count", "0 or more"),
    ],
)
def test_what_is_wrong_is_told_with_a_pointer(data: object, pointer: str, words: str) -> None:
    found = problems(data)
    assert set(found) == {pointer}
    assert words in found[pointer]


def test_all_problems_are_told_at_once() -> None:
    assert set(problems({"args": [1, 2], "env": {"A": True}, "x": 1})) == {
        "/args/0",
        "/args/1",
        "/env/A",
        "/x",
    }


def test_a_command_that_cannot_be_read_says_where() -> None:
    with pytest.raises(MalformedDocument) as caught:
        read_envelope({"command": "vllm serve 'm"})
    assert caught.value.problems[0].column == 12
