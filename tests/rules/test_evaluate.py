"""Verdicts of whole proposals, and the corrected proposals that come with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.proposal.proposal import Proposal
from app.proposal.shell import parse_command
from app.rules.evaluate import validate
from app.rules.registry import Registry, Rule, default_registry, rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag
from app.verdict.verdict import Outcome, Verdict

LIBRARY = CatalogueLibrary()
MASKED = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""


def verdict_on(
    proposal: str | Proposal | dict[str, Any], version: str = "0.32.0", **options: Any
) -> Verdict:
    if isinstance(proposal, str):
        proposal = parse_command(proposal)
    elif isinstance(proposal, dict):
        proposal = read_envelope(proposal).proposal
    return validate(proposal, LIBRARY.get(version), **options)


def rules_of(verdict: Verdict, severity: Severity = Severity.ERROR) -> set[str]:
    return {finding.rule for finding in verdict.findings if finding.severity is severity}


def test_a_bad_command_comes_back_corrected_and_accepted() -> None:
    verdict = verdict_on("vllm serve m --return-sampling-mask")
    assert verdict.outcome is Outcome.REJECTED
    (error,) = [f for f in verdict.findings if f.severity is Severity.ERROR]
    assert error.rule == "sampling-mask-logprobs-mode"
    assert error.location is not None
    assert (error.location.line, error.location.column) == (1, 14)
    assert error.engine_message is not None
    assert error.engine_message.startswith("sampling distribution replay requires logprobs_mode=")
    assert verdict.corrected is not None
    assert verdict.corrected["safe"] is True
    assert verdict_on(verdict.corrected["command"]).accepted


def test_all_errors_are_told_at_once_where_vllm_stops_at_the_first() -> None:
    command = (
        "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m --return-sampling-mask "
        f"--logits-processors a.b:C {NGRAM}"
    )
    assert rules_of(verdict_on(command, "0.31.0")) == {
        "sampling-mask-runner",
        "sampling-mask-speculative-decoding",
        "sampling-mask-logits-processors",
        "sampling-mask-logprobs-mode",
    }


def test_what_gives_something_up_is_only_done_where_nothing_else_helps_and_said() -> None:
    verdict = verdict_on(f"vllm serve m --return-sampling-mask {NGRAM}", "0.31.0")
    assert verdict.corrected is not None
    assert verdict.corrected["safe"] is False
    assert "drop speculative decoding" in verdict.corrected["fixes"]
    assert "--speculative-config" not in verdict.corrected["command"]
    assert "--return-sampling-mask" in verdict.corrected["command"]
    assert verdict_on(verdict.corrected["command"], "0.32.0").accepted


def test_no_correction_is_offered_where_none_is_accepted() -> None:
    verdict = verdict_on({"args": ["m", "--return-sampling-mask", "--frobnicate"]}, "0.31.0")
    assert verdict.outcome is Outcome.REJECTED
    assert verdict.corrected is None


def test_an_accepted_proposal_needs_no_correction() -> None:
    verdict = verdict_on(f"{MASKED} --enable-scale-out")
    assert verdict.accepted
    assert verdict.corrected is None


def test_0_28_leaves_the_runner_open_and_says_what_settles_it() -> None:
    verdict = verdict_on(MASKED, "0.28.0")
    assert verdict.outcome is Outcome.UNDETERMINED
    (question,) = [f for f in verdict.findings if f.undecided]
    assert "config.json" in question.message
    assert verdict.corrected is not None
    assert verdict.corrected["command"].startswith("VLLM_USE_V2_MODEL_RUNNER=1 ")
    assert verdict_on(verdict.corrected["command"], "0.28.0").accepted


@pytest.mark.parametrize(
    ("architecture", "more", "outcome"),
    [
        ("Qwen3ForCausalLM", {}, Outcome.ACCEPTED),
        ("MixtralForCausalLM", {"num_local_experts": 8}, Outcome.REJECTED),
    ],
)
def test_the_model_settles_it_on_0_28(
    architecture: str, more: dict[str, int], outcome: Outcome
) -> None:
    model = {"architectures": [architecture], **more}
    proposal = replace(parse_command(MASKED), model_config=model)
    assert verdict_on(proposal, "0.28.0").outcome is outcome


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_a_negative_max_logprobs_is_refused_with_its_range(version: str) -> None:
    command = f"VLLM_USE_V2_MODEL_RUNNER=1 {MASKED} --max-logprobs"
    refused = verdict_on(f"{command} -2", version)
    (error,) = [f for f in refused.findings if f.severity is Severity.ERROR]
    assert "max-logprobs" in error.message.replace("_", "-")
    assert "-1" in error.message
    assert verdict_on(f"{command} -1", version).accepted


def test_an_unresolved_variable_in_a_decisive_place_is_an_open_question() -> None:
    verdict = verdict_on('vllm serve m --return-sampling-mask --logprobs-mode "$MODE"')
    assert verdict.outcome is Outcome.UNDETERMINED
    (question,) = [f for f in verdict.findings if f.undecided]
    assert "$MODE" in question.message
    assert question.location is not None
    assert question.location.text == '"$MODE"'


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (
            "--speculative-config",
            {
                "method": "mtp",
                "num_speculative_tokens": 1,
                "enable_adaptive_verification": "$ADAPTIVE",
            },
        ),
        ("--hf-overrides", {"canvas_length": "$CANVAS"}),
    ],
)
def test_an_unresolved_variable_inside_json_is_an_open_question_too(
    option: str, value: dict[str, str]
) -> None:
    quoted = json.dumps(value).replace('"', '\\"')
    verdict = verdict_on(f'{MASKED} {option} "{quoted}"')
    assert verdict.outcome is Outcome.UNDETERMINED, verdict.findings


def test_words_that_cannot_be_seen_are_one_open_question_and_not_one_a_rule() -> None:
    verdict = verdict_on("vllm serve m --return-sampling-mask $EXTRA")
    assert verdict.outcome is Outcome.UNDETERMINED
    assert [f.rule for f in verdict.findings if f.undecided] == ["shell-unresolved-words"]
    assert any("$EXTRA" in entry.needs for entry in verdict.not_checked)


def test_a_value_that_was_refused_raises_no_further_question() -> None:
    verdict = verdict_on("vllm serve m --return-sampling-mask --logprobs-mode x")
    assert rules_of(verdict) == {"cli-invalid-choice"}
    assert not any(f.undecided for f in verdict.findings)


def test_what_ends_before_there_are_settings_gets_a_verdict_all_the_same() -> None:
    verdict = verdict_on("vllm serve m --config serve.txt")
    assert not verdict.accepted
    assert verdict.findings


def test_an_unresolved_variable_that_decides_nothing_does_not_matter() -> None:
    assert verdict_on('vllm serve m --port "$PORT"').accepted


def test_what_was_not_told_is_listed_with_the_rule_that_asked() -> None:
    verdict = verdict_on(MASKED)
    assert verdict.accepted
    needs = {entry.rule: entry.needs for entry in verdict.not_checked}
    assert "config.json" in needs["sampling-mask-diffusion"]
    assert "hardware" in needs["sampling-mask-runner"]


def test_settings_are_those_given_with_origin_and_place_and_what_follows_from_them() -> None:
    settings = verdict_on(f"{MASKED} --enable-dbo").settings
    assert settings is not None
    given = settings["given"]["logprobs_mode"]
    assert (given["value"], given["origin"]) == ("processed_logprobs", "argv")
    assert given["location"]["line"] == 1
    assert "max_logprobs" not in settings["given"]
    runner = settings["derived"]["model_runner"]
    assert runner["version"] == "V1"
    assert "dual batch overlap" in runner["because"]


@pytest.mark.parametrize(
    "proposal",
    [
        {"args": ["m", "--return-sampling-mask"]},
        {"command": "vllm serve m --return-sampling-mask"},
        {"config": {"model": "m", "return_sampling_mask": True}},
        {"config_yaml": "model: m\nreturn-sampling-mask: true\n"},
    ],
)
def test_a_correction_comes_in_the_form_of_the_proposal(proposal: dict[str, Any]) -> None:
    verdict = verdict_on(proposal)
    assert rules_of(verdict) == {"sampling-mask-logprobs-mode"}
    corrected = verdict.corrected
    assert corrected is not None
    (form,) = proposal
    assert form in corrected
    assert verdict_on({form: corrected[form]}).accepted


@pytest.mark.parametrize(
    ("command", "fixes"),
    [
        (f"{MASKED} --logits-processors a.b:C", ["drop --return-sampling-mask"]),
        ("vllm serve m --return-sampling-mask", ["drop --return-sampling-mask"]),
        (
            f"{MASKED} --logits-processors a.b:C --max-logprobs -2",
            ["drop --return-sampling-mask", "use -1, the nearest value allowed"],
        ),
    ],
)
def test_a_correction_changes_nothing_that_another_fix_makes_superfluous(
    command: str, fixes: list[str]
) -> None:
    proposal = {"command": command, "hardware": {"gpu": "cpu"}}
    corrected = verdict_on(proposal).corrected
    assert corrected is not None
    assert sorted(corrected["fixes"]) == fixes
    assert ("--logits-processors" in corrected["command"]) is ("--logits-processors" in command)


def test_findings_of_the_environment_point_at_the_variable() -> None:
    verdict = verdict_on({"args": MASKED.split()[2:], "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}})
    (error,) = [f for f in verdict.findings if f.severity is Severity.ERROR]
    assert error.location is not None
    assert error.location.variable == "VLLM_USE_V2_MODEL_RUNNER"
    assert [place.text for place in error.related] == ["--return-sampling-mask"]
    assert verdict.corrected is not None
    assert verdict.corrected["env"] == {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def test_masks_behind_a_route_that_is_off_are_a_warning_with_a_safe_fix() -> None:
    verdict = verdict_on(MASKED, "0.33.0")
    (warning,) = [f for f in verdict.findings if f.rule == "sampling-mask-route-off"]
    assert warning.severity is Severity.WARNING
    assert warning.fix == Fix(
        "add --enable-scale-out", (SetFlag("enable_scale_out", value=True),), safe=True
    )


@pytest.mark.parametrize(
    ("words", "rule_id", "safe"),
    [
        ("", "sampling-mask-logprobs-mode", True),
        ("--logprobs-mode raw_logits", "sampling-mask-logprobs-mode", False),
        ("--no-enable-scale-out", "sampling-mask-route-off", False),
        ("--override-generation-config.top_k 64", "sampling-mask-max-logprobs", True),
        (
            "--max-logprobs 5 --override-generation-config.top_k 64",
            "sampling-mask-max-logprobs",
            False,
        ),
    ],
)
def test_a_fix_is_safe_only_where_it_takes_nothing_that_was_asked_for(
    words: str, rule_id: str, safe: bool
) -> None:
    verdict = verdict_on(f"vllm serve m --return-sampling-mask {words}")
    (finding,) = [f for f in verdict.findings if f.rule == rule_id]
    assert finding.fix is not None
    assert finding.fix.safe is safe


def endless(config: ServeConfig) -> Any:
    port = config["port"]
    yield ENDLESS.finding(
        f"not {port}", fix=Fix(f"not {port}", (SetFlag("port", port + 1),), safe=True)
    )


ENDLESS: Rule = rule(
    id="endless",
    title="-",
    explanation="-",
    remedy="-",
    severity=Severity.ERROR,
    area="t",
    source="-",
)(endless)


def test_fixes_that_never_suffice_end_without_a_correction() -> None:
    registry = Registry((ENDLESS,))
    verdict = verdict_on("vllm serve m --port 1", registry=registry)
    assert verdict.outcome is Outcome.REJECTED
    assert verdict.corrected is None


def test_a_crash_of_a_rule_reaches_the_hook_and_not_the_verdict() -> None:
    def crash(_: ServeConfig) -> Iterator[Finding]:
        raise RuntimeError

    crashes: list[str] = []
    registry = Registry((Rule(ENDLESS.declaration, crash),))
    verdict = verdict_on(
        "vllm serve m", registry=registry, on_crash=lambda name, _: crashes.append(name)
    )
    assert verdict.accepted
    assert crashes == ["endless"]
    assert rules_of(verdict, Severity.INFO) == {"internal-rule-error"}


def test_texts_that_findings_point_into_come_with_the_verdict() -> None:
    command = "vllm serve m --return-sampling-mask"
    assert command in verdict_on(command).sources.values()
    text = "return-sampling-mask: true\n"
    assert text in verdict_on({"config_yaml": text}).sources.values()


def test_the_registry_of_the_project_is_built_once() -> None:
    assert default_registry() is default_registry()
