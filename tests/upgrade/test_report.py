from __future__ import annotations

import json
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.catalogue.compare import shipped_history
from app.errors import InvalidEnvelope, UnknownVersion
from app.proposal.envelope import Along, Envelope
from app.proposal.proposal import Variable
from app.proposal.read import read_text
from app.upgrade.check import answer, check_upgrade, overall
from app.upgrade.report import Upgrade, upgrade
from app.upgrade.text import render_upgrades
from app.verdict.location import Location
from app.verdict.verdict import Outcome

LIBRARY = CatalogueLibrary()


def report(text: str, old: str, new: str, along: Along | None = None) -> Upgrade:
    proposal = read_text(text, source="run", along=along).proposal
    return upgrade(proposal, LIBRARY.get(old), LIBRARY.get(new), shipped_history())


def changes(found: Upgrade) -> list[tuple[str, str, str | None, str | None]]:
    return [(c.kind, c.name, c.since, c.replacement) for c in found.changes]


def test_nothing_changes_for_what_both_versions_read_alike() -> None:
    found = report("vllm serve m --max-model-len 8192", "0.31.0", "0.32.0")
    assert found.changes == ()
    assert (found.new, found.gone, found.corrected) == ((), (), None)
    assert found.outcome is Outcome.ACCEPTED


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (
            "vllm serve m --enable-bf16x3-router-gemm",
            "0.28.0",
            "0.33.0",
            [("removed", "--enable-bf16x3-router-gemm", "0.30.0", None)],
        ),
        (
            "vllm serve m --no-enable-mamba-fine-grained-prefix-cache",
            "0.30.0",
            "0.33.0",
            [
                (
                    "renamed",
                    "--no-enable-mamba-fine-grained-prefix-cache",
                    "0.31.0",
                    "--no-enable-mamba-shared-prefix-checkpoint",
                )
            ],
        ),
        (
            "vllm serve m --disable-cascade-attn",
            "0.31.0",
            "0.32.0",
            [("deprecated", "--disable-cascade-attn", "0.32.0", None)],
        ),
        (
            "vllm serve m --mamba-cache-mode all",
            "0.30.0",
            "0.32.0",
            [("choices", "--mamba-cache-mode", "0.32.0", None)],
        ),
        (
            (
                'vllm serve m --kv-transfer-config \'{"kv_connector": "C", "kv_role": "kv_both", '
                '"kv_ip": "h"}\''
            ),
            "0.31.0",
            "0.33.0",
            [("key-removed", "--kv-transfer-config.kv_ip", "0.32.0", None)],
        ),
        (
            "VLLM_KIMI_K3_GEMM_RS=1 vllm serve m",
            "0.30.0",
            "0.32.0",
            [("environment-removed", "VLLM_KIMI_K3_GEMM_RS", "0.31.0", "VLLM_ENABLE_GEMM_RS")],
        ),
        (
            "VLLM_KV_CACHE_LAYOUT=NHD vllm serve m",
            "0.28.0",
            "0.29.0",
            [("environment-meaning", "VLLM_KV_CACHE_LAYOUT", "0.29.0", None)],
        ),
        (
            "vllm serve m --reasoning-parser none",
            "0.32.0",
            "0.33.0",
            [("meaning", "--reasoning-parser", "0.33.0", None)],
        ),
    ],
)
def test_what_changes_is_told_with_the_version_and_the_replacement(
    text: str, old: str, new: str, expected: list[tuple[str, str, str | None, str | None]]
) -> None:
    found = report(text, old, new)
    assert changes(found) == expected
    assert found.changes[0].location is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm serve m \\\n  --enable-mamba-fine-grained-prefix-cache  # c\n",
            "vllm serve m \\\n  --enable-mamba-shared-prefix-checkpoint  # c\n",
        ),
        (
            "model: m\nenable-mamba-fine-grained-prefix-cache: true  # c\n",
            "model: m\nenable-mamba-shared-prefix-checkpoint: true\n",
        ),
        (
            "LLM('m', enable_mamba_fine_grained_prefix_cache=True)",
            "LLM('m', enable_mamba_shared_prefix_checkpoint=True)",
        ),
        (
            "export VLLM_KIMI_K3_GEMM_RS=1\nvllm serve m",
            "VLLM_ENABLE_GEMM_RS=1 vllm serve m",
        ),
        (
            "docker run -e VLLM_KIMI_K3_GEMM_RS=1 vllm/vllm-openai:v0.30.0 m",
            "docker run -e VLLM_ENABLE_GEMM_RS=1 vllm/vllm-openai:v0.30.0 m",
        ),
        (
            (
                "services:\n  a:\n    image: vllm/vllm-openai:v0.30.0\n"
                "    command:\n      - m\n      - --enable-mamba-fine-grained-prefix-cache # c\n"
            ),
            (
                "services:\n  a:\n    image: vllm/vllm-openai:v0.30.0\n"
                "    command:\n      - m\n      - --enable-mamba-shared-prefix-checkpoint # c\n"
            ),
        ),
    ],
)
def test_the_edited_proposal_keeps_its_form(text: str, expected: str) -> None:
    found = report(text, "0.30.0", "0.33.0")
    assert found.corrected is not None
    forms = ("command", "config_yaml", "python", "compose")
    assert [found.corrected[form] for form in forms if form in found.corrected] == [expected]
    assert "fixes" in found.corrected


def test_a_variable_whose_values_changed_is_not_moved() -> None:
    found = report("VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4=1 vllm serve m", "0.30.0", "0.31.0")
    (change,) = found.changes
    assert change.replacement == "VLLM_ROCM_USE_AITER_MOE_SITUV2"
    assert found.corrected is None


def test_a_variable_that_became_a_flag_is_written_as_one() -> None:
    along = Along(
        environment={
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": Variable(
                "VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "5", Location(pointer="/env/x")
            )
        }
    )
    found = report("vllm serve m", "0.29.0", "0.30.0", along)
    assert found.corrected is not None
    assert found.corrected["command"] == "vllm serve m --prefix-cache-retention-interval 5"
    assert "env" not in found.corrected


def test_defaults_of_what_is_not_given_are_listed_apart() -> None:
    found = report("vllm serve m", "0.28.0", "0.33.0")
    listed = {d.name: (d.kind, d.before, d.after, d.since) for d in found.defaults}
    assert listed["--allowed-origins"] == ("flag", ["*"], [], "0.32.0")
    assert listed["VLLM_ALLREDUCE_USE_FLASHINFER"] == ("environment", "0", "1", "0.29.0")
    given = report("VLLM_ALLREDUCE_USE_FLASHINFER=0 vllm serve m", "0.28.0", "0.33.0")
    assert "VLLM_ALLREDUCE_USE_FLASHINFER" not in {d.name for d in given.defaults}


def test_refusals_of_one_version_only_are_new_or_gone() -> None:
    text = (
        "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs "
        "--speculative-config "
        '\'{"method": "ngram", "num_speculative_tokens": 2}\''
    )
    found = report(text, "0.31.0", "0.32.0")
    assert found.before.outcome is Outcome.REJECTED
    assert "sampling-mask-speculative" in " ".join(f.rule for f in found.gone)
    assert not any(f.severity == "error" for f in found.new)


def test_the_report_is_plain_json() -> None:
    found = report("vllm serve m --enable-bf16x3-router-gemm", "0.28.0", "0.33.0")
    body: dict[str, Any] = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (body["from"], body["to"], body["verdict"]) == ("0.28.0", "0.33.0", "rejected")
    assert body["changes"][0]["since"] == "0.30.0"
    assert {f["rule"] for f in body["findings"]["new"]} == {"cli-unknown-flag"}


def test_the_text_tells_all_of_it() -> None:
    found = report("vllm serve m --enable-mamba-fine-grained-prefix-cache\n", "0.30.0", "0.33.0")
    text = render_upgrades([found])
    for words in (
        "from vLLM 0.30.0 to 0.33.0: vLLM 0.33.0 does not start with this",
        "renamed: --enable-mamba-fine-grained-prefix-cache",
        "since 0.31.0",
        "error[cli-unknown-flag]",
        "--allowed-origins",
        "vllm serve m --enable-mamba-shared-prefix-checkpoint",
    ):
        assert words in text
    same = render_upgrades([report("vllm serve m --seed 1", "0.30.0", "0.30.0")])
    assert "nothing changes for it" in same


def envelope(text: str) -> Envelope:
    return read_text(text, source="run")


def test_the_version_in_use_is_that_of_the_image() -> None:
    text = "docker run vllm/vllm-openai:v0.29.0 m"
    (found,) = check_upgrade(envelope(text), LIBRARY, None, None)
    assert (found.before.vllm_version, found.after.vllm_version) == ("0.29.0", LIBRARY.newest)


def test_versions_that_make_no_upgrade_are_refused() -> None:
    for old, new in ((None, "0.32.0"), ("0.32.0", "0.32.0"), ("0.33.0", "0.28.0")):
        with pytest.raises(InvalidEnvelope):
            check_upgrade(envelope("vllm serve m"), LIBRARY, old, new)
    with pytest.raises(UnknownVersion):
        check_upgrade(envelope("vllm serve m"), LIBRARY, "0.1.0", None)


def test_each_service_has_its_own_report() -> None:
    text = (
        "services:\n  a: {image: 'vllm/vllm-openai:v0.29.0', command: [m]}\n"
        "  b: {image: 'vllm/vllm-openai:v0.28.0', command: [m, --enable-bf16x3-router-gemm]}\n"
    )
    found = check_upgrade(envelope(text), LIBRARY, None, "0.33.0")
    assert [(u.subject, u.before.vllm_version) for u in found] == [("a", "0.29.0"), ("b", "0.28.0")]
    assert overall(found) is Outcome.REJECTED
    body = answer(found)
    assert (body["accepted"], len(body["upgrades"])) == (False, 2)
    assert answer(found[:1])["subject"] == "a"
