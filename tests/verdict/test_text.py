"""The report for people: what it shows, and that nothing in a proposal acts on a terminal."""

from __future__ import annotations

from dataclasses import replace

from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag
from app.verdict.location import Location
from app.verdict.render.text import render_text
from app.verdict.verdict import NotChecked, Verdict

COMMAND = "vllm serve m \\\n  --return-sampling-mask"
FIX = Fix("set --logprobs-mode", (SetFlag("logprobs_mode", "processed_logprobs"),), safe=True)
PLACE = Location(
    source="command",
    line=2,
    column=3,
    end_line=2,
    end_column=25,
    argv_index=1,
    text="--return-sampling-mask",
)
FINDING = Finding(
    rule="sampling-mask-logprobs-mode",
    severity=Severity.ERROR,
    message="masks need processed logprobs",
    location=PLACE,
    fix=FIX,
    engine_message="sampling distribution replay requires it",
)
VERDICT = Verdict.of(
    "0.32.0",
    [FINDING],
    not_checked=(NotChecked("sampling-mask-diffusion", "the model's config.json"),),
    corrected={"command": "vllm serve m --x", "fixes": [FIX.description], "safe": True},
    sources={"command": COMMAND},
)


def test_a_report_says_verdict_place_words_of_vllm_fix_and_correction() -> None:
    assert render_text([VERDICT]) == (
        "rejected: vLLM 0.32.0 does not start with this\n"
        "\n"
        "error[sampling-mask-logprobs-mode]: masks need processed logprobs\n"
        "  --> command:2:3\n"
        "    |\n"
        "  2 |   --return-sampling-mask\n"
        "    |   ^^^^^^^^^^^^^^^^^^^^^^\n"
        "  = vLLM says: sampling distribution replay requires it\n"
        "  = fix: set --logprobs-mode\n"
        "\n"
        "not checked:\n"
        "  sampling-mask-diffusion: needs the model's config.json\n"
        "\n"
        "corrected:\n"
        "  - set --logprobs-mode\n"
        "\n"
        "  vllm serve m --x\n"
        "\n"
        "1 error\n"
    )


def test_an_accepted_proposal_without_findings_is_said_in_two_lines() -> None:
    report = render_text([Verdict.of("0.33.0", [])])
    assert report == "accepted: vLLM 0.33.0 starts with this\n\nnothing to report\n"


def test_an_open_question_is_told_apart_from_a_warning() -> None:
    open_question = replace(FINDING, severity=Severity.WARNING, undecided=True)
    report = render_text([Verdict.of("0.28.0", [open_question])])
    assert report.startswith("undetermined: ")
    assert "undecided[sampling-mask-logprobs-mode]" in report


def test_errors_come_before_warnings_whatever_their_order() -> None:
    warning = replace(FINDING, rule="w", severity=Severity.WARNING)
    report = render_text([Verdict.of("0.32.0", [warning, FINDING])])
    assert report.index("error[") < report.index("warning[")
    assert report.endswith("1 error, 1 warning\n")


def test_a_place_known_only_by_its_number_names_the_word() -> None:
    finding = replace(FINDING, location=Location(argv_index=4, text="--return-sampling-mask"))
    assert "  --> argument 5: --return-sampling-mask\n" in render_text(
        [Verdict.of("0.32.0", [finding])]
    )


def test_control_and_direction_characters_are_shown_and_not_sent() -> None:
    source = "vllm serve m --x \x1b[2J\u202e"
    place = Location(source="command", line=1, column=18, end_line=1, end_column=23)
    finding = replace(FINDING, message="bad \x1b]0;title\x07\nmore", location=place)
    report = render_text([Verdict.of("0.32.0", [finding], sources={"command": source})])
    assert not any(c in report for c in "\x1b\x07\u202e")
    assert "\\x1b[2J\\u202e" in report
    caret = next(line for line in report.splitlines() if "^" in line)
    shown = next(line for line in report.splitlines() if line.startswith("  1 |"))
    assert shown[caret.index("^") : caret.rindex("^") + 1] == "\\x1b[2J\\u202e"


def test_a_long_line_is_cut_around_the_place() -> None:
    source = "vllm serve m " + "--a " * 500 + "--return-sampling-mask " + "--b " * 500
    start = source.index("--return") + 1
    place = Location(source="command", line=1, column=start, end_line=1, end_column=start + 22)
    finding = replace(FINDING, location=place)
    report = render_text([Verdict.of("0.32.0", [finding], sources={"command": source})])
    shown = next(line for line in report.splitlines() if line.startswith("  1 | …"))
    caret = next(line for line in report.splitlines() if "^" in line)
    assert len(shown) < 140
    assert shown[caret.index("^") : caret.rindex("^") + 1] == "--return-sampling-mask"


def test_a_place_outside_its_text_shows_no_line() -> None:
    finding = replace(FINDING, location=Location(source="command", line=9, column=1))
    report = render_text([Verdict.of("0.32.0", [finding], sources={"command": "x"})])
    assert "command:9:1" in report
    assert "^" not in report


def test_an_unsafe_correction_warns_and_arguments_are_shown_as_they_are() -> None:
    corrected = {"args": ["m"], "env": {"A": "1"}, "fixes": ["drop it"], "safe": False}
    report = render_text([Verdict.of("0.32.0", [FINDING], corrected=corrected)])
    assert "corrected (gives something up; read the fixes):" in report
    assert '  env: {"A": "1"}\n  args: ["m"]\n' in report


def test_a_corrected_object_can_be_copied_as_json() -> None:
    corrected = {"config": {"model": "m", "x": True, "y": None}, "fixes": [], "safe": True}
    report = render_text([Verdict.of("0.32.0", [FINDING], corrected=corrected)])
    assert '  config: {"model": "m", "x": true, "y": null}\n' in report


def test_colour_is_only_added_where_asked_for() -> None:
    assert "\x1b[31;1merror[" in render_text([VERDICT], colour=True)
    assert "\x1b" not in render_text([VERDICT])


def test_several_verdicts_follow_each_other_with_their_ids() -> None:
    report = render_text([replace(VERDICT, id="a"), Verdict.of("0.33.0", [], id=7)])
    assert report.startswith("[a] rejected")
    assert "\n\n[7] accepted" in report
