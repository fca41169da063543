"""The verdicts are those of real vLLM, on recorded answers.

`seed_answers.jsonl` holds what `vllm serve` of each release said, up to its engine
configuration, on a faked H100 machine and on a CPU. Its first line has the texts and the models'
config.json (what matters of them); a case's answers are indexes into the texts, version by
version: `V1` or `V2` (accepted, with that runner), or the refusal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.evaluate import judge_only
from app.verdict.finding import Severity
from app.verdict.verdict import Outcome, Verdict

ANSWERS = Path(__file__).with_name("seed_answers.jsonl")
LIBRARY = CatalogueLibrary()
GPUS = {"cpu": None, "cuda-h100": "NVIDIA H100 80GB", "cuda-a100": "NVIDIA A100-SXM4-80GB"}

ACCEPTED = {"V1", "V2"}
# Refusals that are these rules' to foresee; others belong to checks that come later.
OURS = (
    "sampling distribution replay",
    "Model Runner V1 does not support",
    "Model Runner V2 does not yet support",
    "Model Runner V2 requires Triton",
    "Prefill context parallelism requires Model Runner V2",
    "trace replay requires",
    "Batch-sharded sampling was explicitly enabled",
    "HiSparse requires Model Runner V2",
    "ModelConfig max_logprobs",
    "invalid literal for int()",
    "[argparse]",
)
SAID = tuple(text for text in OURS if text[0] not in "[i" and "max_logprobs" not in text)
# What nobody told, by case: the draft model's config.json, that a model has a pooling
# configuration in another file, or (0.33) what the class of a model can do.
NOT_TOLD = {
    "R, speculative draft model on cuda-h100",
    "g-91",
    "g-321",
    "f-draft-None-0-cuda-h100",
    "f-draft-None-1-cuda-h100",
    "f-draft-1-0-cuda-h100",
    "f-draft-method-None-0-cuda-h100",
    "f-draft-method-None-1-cuda-h100",
    "f-draft-method-1-0-cuda-h100",
    "a-bge-base-R-arch-None",
    "a-bge-base-R-dbo-1",
    "a-granite4-tiny-R-dbo-1",
}


@dataclass(frozen=True)
class Case:
    id: str
    envelope: dict[str, Any]
    answers: dict[str, str]


@cache
def cases() -> tuple[Case, ...]:
    head, *rows = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    return tuple(_case(head, row) for row in rows)


def _case(head: dict[str, Any], row: dict[str, Any]) -> Case:
    gpu = GPUS[row["platform"]]
    envelope = {
        "args": row["args"],
        "env": row.get("env"),
        "files": row.get("files"),
        "model_config": head["models"][row["args"][0]],
        "hardware": {"gpu": gpu or "cpu", "count": row.get("gpus", 8 if gpu else 0)},
    }
    answers = {
        version: head["texts"][answer]
        for version, answer in zip(head["versions"], row["answers"], strict=True)
        if answer is not None
    }
    return Case(row["id"], {k: v for k, v in envelope.items() if v is not None}, answers)


@cache
def judged(version: str) -> tuple[tuple[Case, str, Verdict], ...]:
    """Every case that the version answered, its answer and our verdict."""
    catalogue = LIBRARY.get(version)
    return tuple(
        (case, case.answers[version], judge_only(read_envelope(case.envelope).proposal, catalogue))
        for case in cases()
        if version in case.answers
    )


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_no_proposal_that_vllm_accepts_is_refused_or_left_open(version: str) -> None:
    refused = {
        case.id: [f.message for f in verdict.findings if f.severity is Severity.ERROR]
        for case, answer, verdict in judged(version)
        if answer in ACCEPTED and not verdict.accepted
    }
    assert refused == {}


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_every_refusal_of_these_rules_is_foreseen(version: str) -> None:
    missed = {
        case.id: answer
        for case, answer, verdict in judged(version)
        if any(text in answer for text in OURS) and verdict.outcome is not Outcome.REJECTED
    }
    assert missed.keys() <= NOT_TOLD, missed


def says(answer: str, text: str) -> bool:
    """Whether an answer, which is recorded up to 400 characters, is `text`."""
    return text in answer or text.startswith(answer.partition("Error: ")[2] or answer)


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_a_refusal_is_said_in_the_words_of_vllm(version: str) -> None:
    unsaid = {}
    for case, answer, verdict in judged(version):
        texts = [f.engine_message for f in verdict.findings if f.engine_message]
        if any(text in answer for text in SAID) and not any(says(answer, t) for t in texts):
            unsaid[case.id] = (answer, texts)
    assert unsaid.keys() <= NOT_TOLD, unsaid


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_the_runner_of_every_accepted_proposal_is_the_one_that_vllm_took(version: str) -> None:
    wrong = {}
    for case, answer, verdict in judged(version):
        assert verdict.settings is not None or answer not in ACCEPTED
        if answer in ACCEPTED and verdict.settings is not None:
            runner = verdict.settings["derived"]["model_runner"]
            if runner["version"] != answer:
                wrong[case.id] = (answer, runner["because"])
    assert wrong.keys() <= NOT_TOLD, wrong


def test_the_answers_cover_each_version_and_both_outcomes() -> None:
    for version in LIBRARY.versions:
        said = [case.answers[version] in ACCEPTED for case in cases() if version in case.answers]
        assert len(said) > 500
        assert 0.15 < sum(said) / len(said) < 0.6
