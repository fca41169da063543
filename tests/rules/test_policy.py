"""Exceptions with a reason, the strict profile, and a site's limits."""

import json
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.errors import InvalidEnvelope
from app.proposal.envelope import Envelope, read_envelope
from app.proposal.read import read_text
from app.proposal.suppression import Profile
from app.rules.policy import Policy
from app.validation import judge, overall
from app.verdict.render.sarif import render_sarif
from app.verdict.render.text import render_text
from app.verdict.verdict import Verdict

LIBRARY = CatalogueLibrary()
REFUSED = "vllm serve m --return-sampling-mask"


def judged(envelope: Envelope, policy: Policy | None = None) -> Verdict:
    (verdict,) = judge(envelope, LIBRARY, "0.32.0", policy=policy)
    return verdict


def of_text(text: str, policy: Policy | None = None) -> Verdict:
    return judged(read_text(text, source="serve.sh"), policy)


def rules(verdict: Verdict) -> list[str]:
    return [finding.rule for finding in verdict.findings]


def test_a_comment_with_a_reason_takes_a_finding_out_and_keeps_it_visible() -> None:
    text = (
        f"# vllm-admission: ignore[sampling-mask-logprobs-mode] our build defaults to it\n{REFUSED}"
    )
    assert not of_text(REFUSED).accepted
    verdict = of_text(text)
    assert verdict.accepted
    (entry,) = verdict.as_json()["suppressed"]
    assert entry["rule"] == "sampling-mask-logprobs-mode"
    assert entry["reason"] == "our build defaults to it"
    assert "excepted:" in render_text([verdict])
    (result,) = [
        r for r in json.loads(render_sarif([verdict]))["runs"][0]["results"] if "suppressions" in r
    ]
    assert result["suppressions"][0]["justification"] == "our build defaults to it"


def test_a_comment_in_yaml_does_too() -> None:
    text = (
        "model: m  # vllm-admission: ignore[sampling-mask-logprobs-mode] our build\n"
        "return-sampling-mask: true\n"
    )
    assert of_text(text).accepted


def test_one_comment_may_name_several_rules() -> None:
    text = (
        "# vllm-admission: ignore[env-unknown, sampling-mask-logprobs-mode] our fork\n"
        f"VLLM_OURS=1 {REFUSED}"
    )
    verdict = of_text(text)
    assert verdict.accepted
    assert len(verdict.suppressed) == 2


def test_without_a_reason_it_is_void() -> None:
    verdict = of_text(f"{REFUSED} # vllm-admission: ignore[sampling-mask-logprobs-mode]")
    assert not verdict.accepted
    assert "suppression-without-reason" in rules(verdict)


def test_a_misspelt_rule_is_told_with_the_likely_one() -> None:
    verdict = of_text("vllm serve m # vllm-admission: ignore[env-unknwon] our fork reads it")
    (finding,) = [f for f in verdict.findings if f.rule == "suppression-unknown-rule"]
    assert "did you mean 'env-unknown'?" in finding.message
    assert finding.location is not None
    assert finding.location.line == 1


def test_one_that_finds_nothing_is_told() -> None:
    verdict = of_text("vllm serve m # vllm-admission: ignore[env-unknown] our fork reads it")
    assert "suppression-unused" in rules(verdict)
    assert verdict.accepted


def test_the_envelope_carries_them_and_the_profile() -> None:
    body: dict[str, Any] = {
        "args": ["m", "--return-sampling-mask"],
        "ignore": [{"rule": "sampling-mask-logprobs-mode", "reason": "patched"}],
    }
    assert judged(read_envelope(body)).accepted
    warned = {"args": ["m"], "env": {"VLLM_OURS": "1"}}
    assert judged(read_envelope(warned)).accepted
    assert not judged(read_envelope({**warned, "profile": "strict"})).accepted


@pytest.mark.parametrize(
    ("member", "pointer"),
    [
        ({"ignore": "env-unknown"}, "/ignore"),
        ({"ignore": ["env-unknown"]}, "/ignore/0"),
        ({"ignore": [{"rule": "env-unknown", "reason": " "}]}, "/ignore/0/reason"),
        ({"ignore": [{"rule": "env-unknown"}]}, "/ignore/0"),
        ({"profile": "lax"}, "/profile"),
        ({"profile": 1}, "/profile"),
    ],
)
def test_what_is_none_is_refused_with_its_place(member: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidEnvelope) as caught:
        read_envelope({"args": ["m"], **member})
    assert [problem.pointer for problem in caught.value.problems] == [pointer]


def test_a_strict_site_cannot_be_talked_down() -> None:
    strict = Policy(Profile.STRICT)
    envelope = read_envelope({"args": ["m"], "env": {"VLLM_OURS": "1"}, "profile": "default"})
    assert not judged(envelope, strict).accepted
    assert judged(read_envelope({"args": ["m"]}), strict).accepted


def test_an_exception_from_what_kept_it_from_being_read_leaves_it_open() -> None:
    flag = "vllm serve m --ours 1 # vllm-admission: ignore[cli-unknown-flag] our fork"
    assert of_text(flag).accepted
    unread = of_text("vllm serve m --omni # vllm-admission: ignore[cli-omni] it is there")
    assert overall([unread]).value == "undetermined"


def test_a_limit_of_the_site_is_told_with_both_numbers_and_a_fix() -> None:
    policy = Policy(limits={"max_logprobs": 64, "max_model_len": 32768})
    verdict = of_text("vllm serve m --max-logprobs 100", policy)
    (finding,) = [f for f in verdict.findings if f.rule == "site-limit"]
    assert finding.message == "max_logprobs is 100; this site allows 64"
    assert finding.location is not None
    assert finding.location.text in {"100", "--max-logprobs"}
    assert verdict.corrected is not None
    assert "--max-logprobs 64" in verdict.corrected["command"]


@pytest.mark.parametrize("text", ["vllm serve m --max-logprobs 64", "vllm serve m"])
def test_within_the_limit_nothing_is_said(text: str) -> None:
    assert of_text(text, Policy(limits={"max_logprobs": 64})).accepted


def test_no_bound_is_above_every_limit() -> None:
    verdict = of_text("vllm serve m --max-logprobs -1", Policy(limits={"max_logprobs": 64}))
    assert "site-limit" in rules(verdict)


def test_a_limit_on_what_is_open_is_not_checked() -> None:
    verdict = of_text("vllm serve m --max-logprobs $N", Policy(limits={"max_logprobs": 64}))
    assert [entry.rule for entry in verdict.not_checked if entry.rule == "site-limit"]
