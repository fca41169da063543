"""Published configurations, with what was known of each: the gate tells it, or says why not.

`cases.jsonl` has a case a line. `published` is the verdict that the collection gives it and
`verdict` the gate's, with the `rule` that tells it; `because` says why they differ. `read` is what
is judged where `input` is no proposal as it stands; `model` and `gpu` are facts given along.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.specifiers import SpecifierSet

from app.catalogue import CatalogueLibrary
from app.errors import AdmissionError
from app.proposal.proposal import Hardware, Proposal
from app.proposal.read import read_text
from app.rules.evaluate import judge_only
from app.verdict.finding import Severity
from app.verdict.verdict import Outcome, Verdict

LIBRARY: Final = CatalogueLibrary()
CASES: Final[list[dict[str, Any]]] = [
    json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()
]
SAME: Final = {"reject": {"rejected"}, "warn": {"warned"}, "accept": {"accepted"}}
_DENSE: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
_LAB: Final = Path(__file__).parents[1] / "lab" / "memory_models.json"
MODELS: Final = {
    "hybrid-35b": json.loads(_LAB.read_text(encoding="utf-8"))["qwen3.5-35b-a3b"],
    "dense": _DENSE,
    "hybrid": {
        **_DENSE,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
    },
    "large": {
        **_DENSE,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "max_position_embeddings": 131072,
        "num_hidden_layers": 64,
    },
}


def _proposal(case: dict[str, Any]) -> Proposal:
    (proposal,) = read_text(case.get("read", case["input"]), source="case").proposals
    hardware = proposal.hardware
    if "gpu" in case:
        hardware = Hardware(case["gpu"], case.get("gpus"), nodes=case.get("nodes"))
    return replace(proposal, model_config=MODELS.get(case.get("model", "")), hardware=hardware)


def _told(verdict: Verdict, rule: str | None) -> str:
    """Give the verdict in the words of the cases; a warning counts if it is the rule's."""
    if verdict.outcome is not Outcome.ACCEPTED:
        return verdict.outcome.value
    warned = any(f.rule == rule and f.severity is Severity.WARNING for f in verdict.findings)
    return "warned" if warned else "accepted"


@pytest.mark.parametrize(
    ("case", "version"),
    [
        pytest.param(case, version, id=f"{number}-{case['id']}-{version}")
        for number, case in enumerate(CASES)
        if case["verdict"] != "unreadable"
        for version in LIBRARY.versions
        if SpecifierSet(case.get("versions", "")).contains(version)
    ],
)
def test_a_published_case_is_told(case: dict[str, Any], version: str) -> None:
    verdict = judge_only(_proposal(case), LIBRARY.get(version))
    rule = case.get("rule")
    assert _told(verdict, rule) == case["verdict"], [f.rule for f in verdict.findings]
    if rule is None:
        assert case["verdict"] == "accepted"
        return
    severity = Severity.ERROR if case["verdict"] == "rejected" else Severity.WARNING
    assert (rule, severity) in {(f.rule, f.severity) for f in verdict.findings}


@pytest.mark.parametrize("case", [case for case in CASES if case["verdict"] == "unreadable"])
def test_what_is_no_proposal_is_not_read(case: dict[str, Any]) -> None:
    with pytest.raises(AdmissionError):
        read_text(case["input"], source="case")


def test_the_verdict_is_the_published_one_or_it_is_said_why_not() -> None:
    unexplained = [
        case["id"]
        for case in CASES
        if case["verdict"] not in SAME[case["published"]] and "because" not in case
    ]
    assert unexplained == []


def test_every_published_case_is_here() -> None:
    assert len({case["id"] for case in CASES}) == 79
