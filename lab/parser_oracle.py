"""What vLLM's own parser says of a proposal: many a second, without building a configuration.

A question is one of

    {"args": [...], "files": {...}, "env": {...}}     `vllm serve` up to its validated arguments
    {"kwargs": {...}}                                 `AsyncEngineArgs(**kwargs)`
    {"variables": {...}}                              `vllm.envs` with these set
    {"defaults": true}                                what nothing at all is parsed to
    {"args": [...], "timed": 100}                     seconds of CPU time for a start and a parse

and an answer has `accepted`, the `stage` that refused (`argparse`, `serve-args`, `engine-args`;
`done`), the `error`, and the `values` that are no defaults (`lab.inside.values`).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from lab.environment import CHECKOUT, Lab, LabError, process_environment

Question = dict[str, Any]
Answer = dict[str, Any]
# Questions answered in one fork: state that one leaves behind could reach the next, which
# parsing does not have; `test_parser_oracle.py` asks some alone.
BATCH = 40


def ask_parser(
    version: str,
    questions: Sequence[Question],
    *,
    gpu: str = "h100",
    batch: int = BATCH,
    lab: Lab | None = None,
) -> list[Answer]:
    """Ask vLLM `version` each question; answers come in the same order.

    Raises:
        NotInstalled: that version is not in the lab.
        LabError: the process that answers ended by itself.
    """
    lab = lab or Lab.default()
    environment = process_environment(lab, version, build="cuda", cache=f"cuda-{gpu}")
    environment |= {"OMP_NUM_THREADS": "1", "LAB_NVIDIA": f"{gpu}:8"}
    lab.logs.mkdir(exist_ok=True)
    log = lab.logs / f"parser-{version}.log"
    answers: dict[int, Answer] = {}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [lab.python, "-P", "-m", "lab.inside.parsing"],
            env=environment,
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for numbered in _batches(questions, batch):
            process.stdin.write(json.dumps(numbered).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                answer: Answer = json.loads(line)
                if answer.get("end"):
                    break
                answers[answer.pop("n")] = answer
            else:
                tail = log.read_text(errors="replace")[-2000:]
                raise LabError(f"the parser's process ended; end of {log}:\n{tail}")
        process.stdin.close()
    unanswered = {"accepted": None, "stage": "oracle", "error": "no answer"}
    return [answers.get(i, unanswered) for i in range(len(questions))]


def known_answers(version: str, questions: Sequence[Question]) -> list[Answer]:
    """Give the answers to exactly these questions, which are kept in the lab once asked."""
    lab = Lab.default()
    asked = json.dumps(questions, sort_keys=True).encode()
    name = f"{version}-{hashlib.sha256(asked).hexdigest()[:16]}.json"
    kept = lab.home / "parser-answers" / name
    if not kept.exists():
        answers = ask_parser(version, questions, lab=lab)
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(answers))
    loaded: list[Answer] = json.loads(kept.read_text())
    return loaded


def _batches(questions: Sequence[Question], size: int) -> Iterator[list[Question]]:
    for start in range(0, len(questions), size):
        yield [
            {**_as_sent(question), "n": start + i}
            for i, question in enumerate(questions[start : start + size])
        ]


def _as_sent(question: Question) -> Question:
    """Set the variables that are asked about, and none else."""
    if "variables" in question:
        return {**question, "env": question["variables"]}
    return question
