"""What Dynamo's worker does not take any more, in whatever form it is started."""

from __future__ import annotations

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.read import read_text
from app.rules.evaluate import validate
from app.verdict.finding import Severity
from app.verdict.verdict import Verdict

LIBRARY = CatalogueLibrary()
START = "python3 -m dynamo.vllm --model m"
TRANSFER = """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""

LMCACHE = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'


def verdict_of(text: str) -> Verdict:
    (proposal,) = read_text(text, source="f").proposals
    return validate(proposal, LIBRARY.get("0.32.0"))


def rules(text: str) -> list[str]:
    found = verdict_of(text).findings
    told = (f for f in found if f.severity is not Severity.INFO)
    return [f.rule for f in told if f.rule.startswith("launch-")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{START} --is-decode-worker", ["launch-removed-option"]),
        (f"{START} --no-is-decode-worker", ["launch-removed-option"]),
        (f"{START} --multimodal-encode-worker", ["launch-removed-option"]),
        (f"{START} --connector nixl", ["launch-removed-option"]),
        (f"{START} --connector=none", ["launch-removed-option"]),
        (f"DYN_VLLM_IS_PREFILL_WORKER=1 {START}", ["launch-removed-variable"]),
        (f"DYN_VLLM_IS_PREFILL_WORKER=false {START}", []),
        (f"DYN_CONNECTOR= {START}", ["launch-removed-variable"]),
        (f"{START} --disaggregation-mode=prefill", ["launch-prefill-without-transfer"]),
        (
            f"DYN_VLLM_DISAGGREGATION_MODE=prefill {START}",
            ["launch-prefill-without-transfer"],
        ),
        (f"DYN_VLLM_DISAGGREGATION_MODE=prefill {START} --disaggregation-mode decode", []),
        (f"{START} --disaggregation-mode prefill {TRANSFER}", []),
        (f"{START} --disaggregation-mode prefill $MORE", []),
        (f"{START} --disaggregation-mode decode", []),
        (f"vllm serve m {TRANSFER}", []),
        (f"docker run nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.0 {START} --connector nixl", []),
        (
            f"docker run corp/dynamo:0.28.0 {START} --connector nixl",  # no version of Dynamo's
            ["launch-removed-option"],
        ),
        (
            f"docker run corp/dynamo:1.2.0 {START} --connector nixl --is-decode-worker",
            ["launch-removed-option"],
        ),
    ],
)
def test_what_is_gone_is_told(text: str, expected: list[str]) -> None:
    assert rules(text) == expected


@pytest.mark.parametrize(
    ("given", "mended", "safe"),
    [
        ("--is-decode-worker", "--disaggregation-mode=decode", True),
        ("--connector nixl", TRANSFER, True),
        (
            "--connector=lmcache",
            f"'--kv-transfer-config={LMCACHE}'",
            True,
        ),
    ],
)
def test_what_stands_for_it_is_written(given: str, mended: str, safe: bool) -> None:
    corrected = verdict_of(f"{START} {given}").corrected
    assert corrected is not None
    assert corrected["command"] == f"{START} {mended}"
    assert corrected["safe"] is safe
    assert rules(corrected["command"]) == []


@pytest.mark.parametrize("given", ["--connector nixl kvbm", f"--connector nixl {TRANSFER}"])
def test_what_has_no_single_successor_is_left(given: str) -> None:
    assert verdict_of(f"{START} {given}").corrected is None
