"""Names that no model has.

Real vLLM 0.28.0 to 0.33.0 refuse those that are refused here; 0.28.0 and 0.33.0 were asked about
the odd ones, too.
"""

from __future__ import annotations

import pytest
import yaml

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of
from app.proposal.envelope import Envelope, read_envelope
from app.validation import judge
from app.verdict.verdict import Outcome, Verdict
from tests.kubernetes.support import LIBRARY

REFUSED, ODD = "model-name-refused", "model-name-odd"


def verdict_of(*args: str, env: dict[str, str] | None = None) -> Verdict:
    [verdict] = judge(read_envelope({"args": list(args), "env": env or {}}), LIBRARY, "0.32.0")
    return verdict


def told(*args: str, env: dict[str, str] | None = None) -> list[str]:
    return [f.rule for f in verdict_of(*args, env=env).findings if f.rule in {REFUSED, ODD}]


@pytest.mark.parametrize(
    ("name", "rule", "meant"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B", REFUSED, "Qwen/Qwen3-8B"),
        ("https://example.org/m.gguf", REFUSED, None),
        ("hf://org/m", REFUSED, "org/m"),
        ("oci://example.org/m", REFUSED, None),
        ("--max-model-len 4096", REFUSED, None),
        ("", REFUSED, None),
        ("hf.co/org/m", ODD, "org/m"),
        ("org/m ", ODD, "org/m"),
        ("org/m\n", ODD, "org/m"),
        ("'org/m'", ODD, "org/m"),
        ('"org/m"', ODD, "org/m"),
        ("a--b/c", ODD, None),
        ("org/m..n", ODD, None),
        ("org/m:Q4_K_M", ODD, None),
        ("org/m@main", ODD, None),
        (f"org/{'x' * 97}", ODD, None),
        ("org/m.git", ODD, None),
        ("org/m-", ODD, None),
        ("org/.m", ODD, None),
        ("$MODEL", ODD, None),
        ("a b", ODD, None),
        ("org/m.gguf", None, None),
        (f"org/{'x' * 96}", None, None),
        ("gpt2", None, None),
        ("s3://bucket/m", None, None),
        ("GS://bucket/m", None, None),
        ("/mnt/models", None, None),
        ("./m b", None, None),
        ("~/m", None, None),
        ("models/a/b", None, None),
    ],
)
def test_a_name(name: str, rule: str | None, meant: str | None) -> None:
    verdict = verdict_of(name)
    found = [f for f in verdict.findings if f.rule in {REFUSED, ODD}]
    assert [f.rule for f in found] == ([rule] if rule else [])
    assert (verdict.outcome is Outcome.REJECTED) is (rule == REFUSED)
    if found:
        assert found[0].location is not None
        assert found[0].location.argv_index == 0
        assert (found[0].fix and found[0].fix.description) == (meant and f"serve {meant}")


def test_the_fix_replaces_the_name() -> None:
    [verdict] = judge(
        read_envelope({"command": "vllm serve https://hf.co/org/m --max-model-len 8"}), LIBRARY
    )
    assert verdict.corrected is not None
    assert verdict.corrected["command"] == "vllm serve org/m --max-model-len 8"


def test_the_name_is_looked_at_before_what_names_other_places() -> None:
    name = "https://example.org/m"
    assert told(name, "--hf-config-path", "org/m") == [REFUSED]
    assert told(name, "--config-format", "mistral") == [REFUSED]


def test_another_hub_and_the_default_are_left_alone() -> None:
    assert told("https://example.org/m", env={"VLLM_USE_MODELSCOPE": "1"}) == []
    assert told("--port", "8000") == []


def test_an_argument_that_is_no_two_words() -> None:
    text = """
    kind: Pod
    metadata: {name: p}
    spec:
      containers:
      - name: server
        image: vllm/vllm-openai:v0.32.0
        args: ["--max-model-len 4096"]
    """
    [server] = servers_in([manifest_of(yaml.safe_load(text))])
    [verdict] = judge(Envelope(proposal=server), LIBRARY)
    [found] = [f for f in verdict.findings if f.rule == REFUSED]
    assert "takes it for the model" in found.message
    assert found.location is not None
    assert found.location.pointer == "/spec/containers/0/args/0"
