from __future__ import annotations

import pytest

from app.catalogue import CatalogueLibrary
from app.errors import UnknownVersion
from app.proposal.envelope import Envelope
from app.proposal.proposal import Form
from app.proposal.read import read_text
from app.validation import answer, judge, overall
from app.verdict.verdict import Outcome

LIBRARY = CatalogueLibrary()


def envelope(text: str, *versions: str) -> Envelope:
    read = read_text(text, source="run")
    return Envelope(proposal=read.proposal, more=read.more, vllm_versions=versions, id=3)


def image_rules(text: str, *versions: str) -> list[tuple[str, str]]:
    verdicts = judge(envelope(text, *versions), LIBRARY, "0.32.0")
    return [
        (verdict.vllm_version, found.rule)
        for verdict in verdicts
        for found in verdict.findings
        if found.rule.startswith("image-version")
    ]


def test_a_proposal_without_an_image_is_judged_for_the_default() -> None:
    (verdict,) = judge(envelope("vllm serve m"), LIBRARY, "0.31.0")
    assert (verdict.vllm_version, verdict.id, verdict.subject) == ("0.31.0", 3, None)


def test_the_image_says_which_version() -> None:
    (verdict,) = judge(envelope("docker run vllm/vllm-openai:v0.29.0-cu130 m"), LIBRARY, "0.32.0")
    assert verdict.vllm_version == "0.29.0"
    assert image_rules("docker run vllm/vllm-openai:v0.29.0 m") == []


def test_an_image_that_does_not_say_it_is_told_of() -> None:
    text = "docker run vllm/vllm-openai:latest m"
    assert image_rules(text) == [("0.32.0", "image-version-unknown")]
    assert image_rules(text, "0.31.0") == []


def test_an_image_of_another_version_than_asked_for_is_told_of() -> None:
    text = "docker run vllm/vllm-openai:v0.29.0 m"
    assert image_rules(text, "0.29.0", "0.31.0") == [("0.31.0", "image-version-differs")]


def test_an_image_of_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnknownVersion, match=r"0\.8\.5"):
        judge(envelope("docker run vllm/vllm-openai:v0.8.5 m"), LIBRARY)


def test_each_service_has_a_verdict_and_the_worst_one_counts() -> None:
    text = (
        "services:\n  good: {image: 'vllm/vllm-openai:v0.32.0', command: [m]}\n"
        "  bad: {image: 'vllm/vllm-openai:v0.31.0', command: [m, --no-such]}\n"
    )
    verdicts = judge(envelope(text), LIBRARY)
    assert [(v.subject, v.outcome) for v in verdicts] == [
        ("good", Outcome.ACCEPTED),
        ("bad", Outcome.REJECTED),
    ]
    assert overall(verdicts) is Outcome.REJECTED
    body = answer(verdicts)
    assert (body["id"], body["accepted"], len(body["verdicts"])) == (3, False, 2)


def test_variables_alone_are_judged_as_the_environment_of_a_server() -> None:
    good = judge(envelope("VLLM_PORT=8000\n# c\nexport HF_HOME=/x\n"), LIBRARY)[0]
    assert good.accepted
    assert [f.rule for f in good.findings] == ["shell-environment-only"]
    bad = judge(envelope("VLLM_PORT=tcp://1:2"), LIBRARY)[0]
    assert bad.outcome is Outcome.REJECTED
    assert read_text("A=1", source="x").proposal.form is Form.COMMAND


def test_a_value_that_is_none_is_what_other_rules_need() -> None:
    (verdict,) = judge(envelope("vllm serve m --max-num-seqs abc"), LIBRARY, "0.32.0")
    needs = {entry.rule: entry.needs for entry in verdict.not_checked}
    assert needs["scheduler-batch-below-sequences"] == "a value of --max-num-seqs"
