from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.relay.inline import outcome as module
from app.relay.inline.facts import ReplayFacts
from app.relay.inline.outcome import (
    Exchange,
    Outcome,
    Skipped,
    first_rows,
    replay_exchange,
    skipped,
)
from app.replay.evidence import ReplayOptions
from app.verdict.finding import Finding, Severity

SAMPLES = Path(__file__).parents[2] / "replay" / "samples"
REQUEST = (SAMPLES / "request.json").read_bytes()
RESPONSE = (SAMPLES / "0.32.0.json").read_bytes()
FACTS = ReplayFacts("0.32.0", ReplayOptions(speculative=False, vocab_size=1024))


def replayed(**changes: Any) -> Outcome:
    members = {"facts": FACTS, "request": REQUEST, "response": RESPONSE, "streamed": False}
    return replay_exchange(Exchange(**{**members, **changes}))


def test_a_recorded_exchange_is_consistent() -> None:
    outcome = replayed()
    assert str(outcome) == "consistent; rows=12; exact=12"
    assert outcome.label == "consistent"


def test_a_stream_is_read_as_one() -> None:
    stream = b"data: " + json.dumps(json.loads(RESPONSE)).encode() + b"\n\ndata: [DONE]\n\n"
    assert replayed(response=stream, streamed=True).verdict == "consistent"


def test_the_admitted_facts_count() -> None:
    facts = ReplayFacts("0.32.0", ReplayOptions(use_fp64_gumbel=True, watermark=True))
    outcome = replayed(facts=facts)
    assert outcome.verdict == "unproven"
    assert "watermark" in outcome.reason


def test_a_refuted_exchange_names_rules_and_first_rows() -> None:
    outcome = replayed(facts=ReplayFacts("0.30.0", ReplayOptions()))
    assert outcome.verdict == "inconsistent"
    assert outcome.rules == ["replay-draw"]
    assert 'rules="replay-draw"' in str(outcome)
    assert 1 <= len(outcome.findings[0]["rows"]) <= 3


@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_of_the_backend_is_no_matter_of_replays(streamed: bool) -> None:
    error = b'{"error": {"message": "", "code": 500}}'
    response = b"data: " + error + b"\n\ndata: [DONE]\n\n" if streamed else error
    outcome = replayed(response=response, streamed=streamed)
    assert str(outcome) == "skipped; reason=error-response"


def test_no_masks_is_unusable_and_says_why() -> None:
    body = json.loads(RESPONSE)
    body["choices"][0]["sampling_mask"] = None
    outcome = replayed(response=json.dumps(body).encode())
    assert str(outcome) == "unusable; reason=no-sampling-mask"
    assert "--return-sampling-mask" in outcome.detail


@pytest.mark.parametrize("response", [b"", b"{", b"[]", b"\xff", b'"x"', b"null"])
@pytest.mark.parametrize("streamed", [False, True])
def test_any_bytes_are_unusable_and_no_crash(response: bytes, streamed: bool) -> None:
    assert replayed(response=response, streamed=streamed).verdict == "unusable"


def test_a_crash_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: bytes) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(module, "replay", crash)
    outcome = replayed()
    assert (outcome.verdict, outcome.label) == ("failed", "failed")
    assert outcome.detail == "ZeroDivisionError: boom"


def test_skips_are_labelled_with_their_reason() -> None:
    outcome = skipped(Skipped.TOO_LARGE)
    assert (outcome.label, str(outcome)) == ("skipped:too-large", "skipped; reason=too-large")


def test_a_finding_about_many_rows_at_once_shows_none() -> None:
    def finding(evidence: dict[str, Any]) -> Finding:
        return Finding(rule="replay-x", severity=Severity.ERROR, message="…", evidence=evidence)

    assert first_rows(finding({"rows": 4096})) == []
    assert first_rows(finding({})) == []
    assert first_rows(finding({"rows": [{"row": n} for n in range(5)]})) == [
        {"row": 0},
        {"row": 1},
        {"row": 2},
    ]
