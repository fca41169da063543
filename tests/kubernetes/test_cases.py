"""Objects of real incidents: each gets the answer that its users would have needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.kubernetes.read import read_kubernetes
from app.proposal.envelope import Envelope
from app.validation import judge
from app.verdict.finding import Severity
from app.verdict.verdict import Outcome, Verdict
from tests.kubernetes.support import LIBRARY

CASES: Final[dict[str, dict[str, Any]]] = {
    case["id"]: case
    for line in Path(__file__).with_name("cases.jsonl").read_text(encoding="utf-8").splitlines()
    for case in [json.loads(line)]
}
# By the rule that says why; c03's option is one that 0.28.0 does not have.
EXPECTED: Final = [
    ("c03", "0.28.0", Outcome.REJECTED, "cli-unknown-flag"),
    ("c05", "0.32.0", Outcome.ACCEPTED, None),
    ("c06", "0.32.0", Outcome.ACCEPTED, "kubernetes-liveness-before-start"),
    ("c08", "0.32.0", Outcome.ACCEPTED, "kubernetes-startup-budget"),
    ("c10", "0.32.0", Outcome.ACCEPTED, "kubernetes-shared-memory"),
    ("c13", "0.32.0", Outcome.REJECTED, "launch-removed-option"),
    ("c14", "0.32.0", Outcome.REJECTED, "parallel-world-exceeds-devices"),
    ("c15", "0.32.0", Outcome.ACCEPTED, "kubernetes-readiness-missing"),
    ("c18", "0.32.0", Outcome.REJECTED, "kubernetes-one-word-command"),
    ("c20", "0.32.0", Outcome.ACCEPTED, None),
    # What decides stands in a comment, and in the model's name.
    ("b17", "0.32.0", Outcome.ACCEPTED, "kubernetes-gpu-share"),
    ("c17", "0.32.0", Outcome.ACCEPTED, "mamba-blocks-by-name"),
]


def verdict_of(text: str, version: str = "0.32.0") -> Verdict:
    [server] = read_kubernetes(text)
    [verdict] = judge(Envelope(proposal=server, vllm_versions=(version,)), LIBRARY)
    return verdict


def test_all_cases_are_here() -> None:
    assert sorted(CASES) == sorted(name for name, *_ in EXPECTED)


@pytest.mark.parametrize(
    ("name", "version", "outcome", "rule"), EXPECTED, ids=[name for name, *_ in EXPECTED]
)
def test_a_case(name: str, version: str, outcome: Outcome, rule: str | None) -> None:
    verdict = verdict_of(CASES[name]["input"], version)
    assert verdict.outcome is outcome
    found = [f for f in verdict.findings if f.severity is not Severity.INFO]
    if rule is None:
        assert found == []
        return
    [told] = [f for f in found if f.rule == rule]
    assert told.location is not None
    assert told.location.line is not None


def test_the_image_decides_what_dynamo_has() -> None:
    text = CASES["c13"]["input"]
    newer = text.replace("{args", "{image: 'nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.1', args")
    older = newer.replace("1.4.1", "1.3.2")
    oldest = newer.replace("1.4.1", "0.9.1")
    assert newer != text
    rules = {
        tag: [f.rule for f in verdict_of(found).findings if f.severity is Severity.ERROR]
        for tag, found in (("new", newer), ("old", older), ("oldest", oldest))
    }
    assert rules == {"new": ["launch-removed-option"], "old": [], "oldest": []}


def test_what_dynamo_dropped_is_said_with_what_to_write() -> None:
    verdict = verdict_of(CASES["c13"]["input"])
    [told] = [f for f in verdict.findings if f.severity is Severity.ERROR]
    assert "every Dynamo with a supported vLLM is newer" in told.message
    assert verdict.corrected is not None
    mended = verdict.corrected["kubernetes"]
    assert '"--disaggregation-mode=prefill"' in mended
    # A prefill worker needs a connector, which only its owner can choose.
    assert "NixlConnector" in mended
    assert verdict.corrected["safe"] is False
    assert verdict_of(mended).accepted


def test_a_hybrid_model_with_its_facts_is_warned_of() -> None:
    """The facts that c17 lacks: the model's config.json, and the product of its nodes."""
    models = Path(__file__).parents[2] / "lab" / "memory_models.json"
    config = json.dumps(json.loads(models.read_text(encoding="utf-8"))["qwen3.5-35b-a3b"])
    pod = yaml.safe_load(CASES["c17"]["input"])
    pod["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    pod["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    annotations = {"vllm-admission/model-config": config}
    subject = {"kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": pod}
    rule = "mamba-blocks-below-seqs"
    found = {f.rule: f for f in verdict_of(yaml.safe_dump(subject)).findings}
    assert found[rule].severity is Severity.WARNING
    assert found[rule].location is not None
    # As it was mended there.
    pod["containers"][0]["args"][-1:] = ["65536", "--max-num-seqs", "32"]
    assert rule not in {f.rule for f in verdict_of(yaml.safe_dump(subject)).findings}
    # Without the facts that is an open question, and its name is all there is to go by.
    unknown = verdict_of(CASES["c17"]["input"])
    assert rule in {skipped.rule for skipped in unknown.not_checked}
    mended = CASES["c17"]["input"].replace('"131072"', '"65536","--max-num-seqs","32"')
    assert mended != CASES["c17"]["input"]
    assert not any(f.rule.startswith("mamba") for f in verdict_of(mended).findings)
