"""Every form, whatever is in it: it reads, is judged, and its rendering reads the same."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalogue import CatalogueLibrary
from app.errors import AdmissionError
from app.proposal.edit import apply_edits
from app.proposal.envelope import read_envelope
from app.proposal.proposal import Form, Proposal
from app.proposal.read import read_text
from app.proposal.render import render
from app.validation import judge
from app.verdict.fix import Edit, RemoveFlag, SetEnvironment, SetFlag, UnsetEnvironment
from app.verdict.verdict import Outcome
from tests.tools.fuzz_readers import SEEDS, check, mutated, run

HERE = Path(__file__).parent
LIBRARY = CatalogueLibrary()
FORMS = sorted(SEEDS.iterdir())
RECIPES = [json.loads(line) for line in (HERE / "recipes.jsonl").read_text().splitlines()]
CASES = [json.loads(line) for line in (HERE / "cases.jsonl").read_text().splitlines()]
UNREADABLE = {
    "a19": "form-not-read",
    "a20": "form-not-read",
    "a22": "form-not-read",
    "b20": "form-not-read",
    "a41": "no-command",  # nothing but a comment
    "c16": "malformed-yaml",
}
# What YAML can hold unescaped between quotes, and the two controls that people do use.
CHARACTERS = st.characters(
    codec="utf-8",
    exclude_categories=("Cc", "Cs"),
    exclude_characters="\u2028\u2029\ufeff\ufffe\uffff",
    include_characters="\n\t",
)
WORD = st.text(CHARACTERS, min_size=1, max_size=12)


def reread(proposal: Proposal) -> Proposal:
    """Read what a proposal renders as."""
    body = json.loads(json.dumps(render(proposal)))
    again = read_envelope(body).proposals
    return next(p for p in again if p.subject == proposal.subject)


def words(proposal: Proposal) -> list[tuple[str, tuple[str, ...]]]:
    return [(word.text, word.unresolved) for word in proposal.words]


def environment(proposal: Proposal) -> dict[str, str]:
    return {name: variable.value for name, variable in proposal.environment.items()}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_rendering_reads_the_same(path: Path) -> None:
    for proposal in read_text(path.read_text(), source=path.name).proposals:
        again = reread(proposal)
        assert words(again) == words(proposal)
        assert again.kwargs == proposal.kwargs
        assert environment(again) == environment(proposal)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_places_are_where_the_words_are(path: Path) -> None:
    lines = path.read_text().split("\n")
    for proposal in read_text(path.read_text(), source=path.name).proposals:
        for word in proposal.words:
            place = word.location
            if place.line is None or "$" in (place.text or "") or proposal.source is None:
                continue
            if path.suffix == ".json":
                continue
            assert place.end_line is not None
            line = lines[place.line - 1]
            assert word.text[:1] in line[(place.column or 1) - 1 :][:2]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_what_is_corrected_keeps_its_form_and_is_accepted(path: Path) -> None:
    envelope = read_text(path.read_text(), source=path.name)
    for verdict in judge(envelope, LIBRARY, "0.32.0"):
        if verdict.corrected is None:
            continue
        facts = {"fixes", "safe"}
        body = {key: value for key, value in verdict.corrected.items() if key not in facts}
        again = judge(read_envelope(body), LIBRARY, verdict.vllm_version)
        outcome = next(v.outcome for v in again if v.subject == verdict.subject)
        assert outcome is Outcome.ACCEPTED


EDITS: list[Edit] = [
    SetFlag("port", 9000),
    SetFlag("logprobs_mode", "processed_logprobs"),
    SetFlag("served_model_name", "it's $mine"),
    SetFlag("speculative_config.num_speculative_tokens", 2),
    RemoveFlag("return_sampling_mask"),
    SetEnvironment("VLLM_USE_V2_MODEL_RUNNER", "1"),
    SetEnvironment("ADDED", "a 'b' $c \"d\""),
    UnsetEnvironment("VLLM_USE_V2_MODEL_RUNNER"),
]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edit_holds_after_rendering_and_changes_nothing_else(path: Path, edit: Edit) -> None:
    catalogue = LIBRARY.get("0.32.0")
    for proposal in read_text(path.read_text(), source=path.name).proposals:
        edited = apply_edits(proposal, [edit], catalogue)
        again = reread(edited)
        assert words(again) == words(edited)
        assert again.kwargs == edited.kwargs
        assert environment(again) == environment(edited)
        if isinstance(edit, SetEnvironment):
            assert environment(again) == {**environment(proposal), edit.variable: edit.value}
            assert words(again) == words(proposal)
        if isinstance(edit, UnsetEnvironment):
            kept = {k: v for k, v in environment(proposal).items() if k != edit.variable}
            assert environment(again) == kept
        if isinstance(edit, SetFlag) and edit.dest == "port" and proposal.words:
            assert "9000" in [text for text, _ in words(again)]
        if isinstance(edit, RemoveFlag) and proposal.words:
            assert "--return-sampling-mask" not in [text for text, _ in words(again)]


@pytest.mark.parametrize("recipe", RECIPES[::6], ids=lambda recipe: recipe["id"])
def test_a_published_command_line_reads_the_same_in_every_form(recipe: dict[str, Any]) -> None:
    args: list[str] = recipe["args"]
    quoted = shlex.join(args)
    dollars = quoted.replace("$", "$$")
    listed = [word.replace("$", "$$") for word in args]
    image = "vllm/vllm-openai:v0.32.0"
    service = {"image": image, "environment": recipe["env"]}
    options = " ".join(f"-e {name}={shlex.quote(v)}" for name, v in recipe["env"].items())
    exports = "".join(f"export {n}={shlex.quote(v)}\n" for n, v in recipe["env"].items())
    texts = {
        Form.ARGS: [json.dumps({"args": args, "env": recipe["env"]})],
        Form.COMMAND: [
            f"{exports}vllm serve {quoted}",
            f"docker run --gpus all {options} {image} {quoted}",
            f"{exports}bash -c {shlex.quote(f'exec vllm serve {quoted}')}",
        ],
        Form.COMPOSE: [
            yaml.safe_dump({"services": {"a": {**service, "command": listed}}}),
            yaml.safe_dump({"services": {"a": {**service, "command": dollars}}}),
            yaml.safe_dump({"services": {"a": {**service, "command": listed}}}, width=20),
        ],
    }
    for form, written in texts.items():
        for text in written:
            proposal = read_text(text, source="recipe").proposal
            assert proposal.form is form
            assert [word.text for word in proposal.words] == args
            assert environment(proposal) == recipe["env"]


def test_every_published_command_line_is_read() -> None:
    for recipe in RECIPES:
        proposal = read_text(f"vllm serve {shlex.join(recipe['args'])}", source="r").proposal
        assert [word.text for word in proposal.words] == recipe["args"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_collected_case_is_read_or_clearly_refused(case: dict[str, Any]) -> None:
    code = UNREADABLE.get(case["id"])
    if code is None:
        assert read_text(case["input"], source="case").proposal is not None
        return
    with pytest.raises(AdmissionError) as caught:
        read_text(case["input"], source="case")
    (problem,) = caught.value.problems
    assert problem.code == code
    assert problem.line is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(WORD, max_size=6))
def test_any_words_survive_each_text_form(args: list[str]) -> None:
    image = "vllm/vllm-openai:v0.32.0"
    listed = [word.replace("$", "$$") for word in args]
    for text in (
        f"vllm serve {shlex.join(args)}",
        f"docker run {image} {shlex.join(args)}",
        f"bash -c {shlex.quote(f'vllm serve {shlex.join(args)}')}",
        json.dumps({"services": {"a": {"image": image, "command": listed}}}, ensure_ascii=False),
    ):
        proposal = read_text(text, source="any").proposal
        assert [word.text for word in proposal.words] == args
        assert words(reread(proposal)) == words(proposal)


@settings(max_examples=80, deadline=None)
@given(st.integers(min_value=0, max_value=1 << 32))
def test_no_mutation_of_a_proposal_crashes_a_reader(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - to be repeatable, not secret
    texts = [path.read_text() for path in FORMS]
    text = mutated(chance.choice(texts), chance.choice(texts), chance)
    assert check(text, LIBRARY, "0.32.0")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_no_text_crashes_a_reader(text: str) -> None:
    assert check(text, LIBRARY, "0.32.0")


def test_the_fuzzer_tells_of_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(0.05, 1, 60, print) == 0
    assert "inputs, seed 1" in capsys.readouterr().out
