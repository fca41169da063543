from __future__ import annotations

import pytest

from app.errors import InvalidEnvelope, MalformedDocument
from app.proposal.proposal import Form
from app.proposal.read import read_shell_text, read_text


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('{"args": ["m"]}', Form.ARGS),
        ('\ufeff \n{"command": "vllm serve m"}', Form.COMMAND),
        ('["m", "--port", "1"]', Form.ARGS),
        ('[\n  "vllm", "serve", "m"\n]\n', Form.ARGS),
        ("vllm serve m", Form.COMMAND),
        ("[ -d /m ] && vllm serve m", Form.COMMAND),
        ("# c\nexport A=1\nvllm serve m --x '{\"a\": 1}'", Form.COMMAND),
        ("m --port 1", Form.COMMAND),
        ("model: m\nport: 1\n", Form.CONFIG_YAML),
        ("# c\n---\nmodel: m\n", Form.CONFIG_YAML),
        ("'max-model-len': 1\n", Form.CONFIG_YAML),
        ("{model: m, port: 1}", Form.CONFIG_YAML),
        ("# c\nservices:\n  a:\n    image: vllm/vllm-openai\n", Form.COMPOSE),
        ('{"services": {"a": {"image": "vllm/vllm-openai"}}}', Form.COMPOSE),
        ("from vllm import LLM\nllm = LLM('m')\n", Form.PYTHON),
        ("LLM(model='m')", Form.PYTHON),
        ("vllm serve 'LLM(m)'", Form.COMMAND),
    ],
)
def test_the_form_is_told_by_the_content(text: str, form: Form) -> None:
    assert read_text(text, source="f").proposal.form is form


def test_an_envelope_keeps_its_versions_and_id() -> None:
    envelope = read_text('{"args": [], "id": 7, "vllm_version": "0.32.0"}', source="f")
    assert (envelope.id, envelope.vllm_versions) == (7, ("0.32.0",))


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nspec: {}\n",
        "kind: Pod\napiVersion: v1\n---\napiVersion: v1\nkind: Service\n",
        '{"apiVersion": "v1", "kind": "Pod"}',
    ],
)
def test_kubernetes_documents_without_vllm_are_told(text: str) -> None:
    with pytest.raises(InvalidEnvelope) as caught:
        read_text(text, source="f")
    assert caught.value.problems[0].code == "no-server"
    assert "Pod" in caught.value.problems[0].detail


def test_broken_json_is_reported_as_json() -> None:
    with pytest.raises(MalformedDocument, match="JSON"):
        read_text('{"args": [', source="f")


def test_locations_name_the_source() -> None:
    proposal = read_text("vllm serve m", source="run.sh").proposal
    assert str(proposal.words[0].location) == "run.sh:1:12"


@pytest.mark.parametrize(
    ("argv", "words", "pointer"),
    [
        ('["vllm", "serve", "m", "--port=1"]', ["m", "--port=1"], "/2"),
        ('["/usr/bin/vllm", "serve", "m"]', ["m"], "/2"),
        (
            '["python3", "-m", "vllm.entrypoints.openai.api_server", "--model=m"]',
            ["--model=m"],
            "/3",
        ),
        ('["m", "a b"]', ["m", "a b"], "/0"),
    ],
)
def test_a_json_list_is_the_words_of_a_command(argv: str, words: list[str], pointer: str) -> None:
    proposal = read_text(argv, source="f").proposal
    assert [word.text for word in proposal.words] == words
    assert proposal.words[0].location.pointer == pointer
    assert read_shell_text(argv).proposal.words == proposal.words


@pytest.mark.parametrize(
    "text", ["[]", '["sh", "-c", "vllm serve m"]', '["m", 5]', "[[[]", '["m",]']
)
def test_lists_that_are_no_words_are_never_taken_for_a_model(text: str) -> None:
    with pytest.raises((InvalidEnvelope, MalformedDocument)):
        read_text(text, source="f")


def test_a_task_of_skypilot_is_no_config_file() -> None:
    task = "resources: {accelerators: L4:1}\nrun: |\n  vllm serve m\n"
    with pytest.raises(InvalidEnvelope) as refused:
        read_text(task, source="sky.yaml")
    assert "the script of its `run`" in refused.value.problems[0].detail
    assert read_text("model: m\nseed: 1\n", source="c.yaml").proposal.yaml is not None
