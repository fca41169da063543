"""Scripts that choose by the index of a pod in its group what they start."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import yaml

from app.kubernetes.read import read_kubernetes
from app.proposal.envelope import Envelope
from app.proposal.positions import LineIndex
from app.proposal.yaml_text import scalar_text
from app.validation import judge
from app.verdict.verdict import Outcome
from tests.kubernetes.support import LIBRARY, answered, patch_of, patched, review
from tests.kubernetes.test_kinds import servers
from tests.kubernetes.test_pods import group, verdicts

EITHER = """\
if [ "${LWS_WORKER_INDEX:-0}" = "0" ]; then
  exec vllm serve m -tp 16 --nnodes 2 --node-rank 0 --master-addr $LWS_LEADER_ADDRESS %s
else
  exec vllm serve m -tp 16 --nnodes 2 --node-rank 1 --headless \\
    --master-addr $LWS_LEADER_ADDRESS %s
fi
"""
FIRST_ONLY = """\
if [ "$LWS_WORKER_INDEX" -eq 0 ]; then
  until ray status; do sleep 1; done
  exec vllm serve m --seed %s
fi
exec ray start --address $LWS_LEADER_ADDRESS --block
"""


def started(script: str, size: Any = 2, program: str = "sh") -> dict[str, Any]:
    subject = group(size)
    [held] = subject["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    held["command"] = [program, "-c", script]
    return subject


def test_every_pod_is_judged_by_its_branch() -> None:
    subject = started(EITHER % ("", ""))
    [server] = servers(subject)
    assert [(name, pod.words[6].text, len(pod.words)) for name, pod in server.pods] == [
        ("LWS_WORKER_INDEX=0", "0", 9),
        ("LWS_WORKER_INDEX=1", "1", 10),
    ]
    assert not server.only_environment
    [verdict] = verdicts(subject)
    assert verdict.outcome is Outcome.ACCEPTED
    assert not [f for f in verdict.findings if f.undecided]


@pytest.mark.parametrize(("number", "line"), [(0, 2), (1, 5)])
def test_what_is_wrong_in_one_branch_is_said_and_not_mended_in_the_other(
    number: int, line: int
) -> None:
    wrong = ["--return-sampling-mask" if i == number else "" for i in range(2)]
    subject = started(EITHER % tuple(wrong))
    [verdict] = verdicts(subject)
    assert verdict.outcome is Outcome.REJECTED
    [found] = [f for f in verdict.findings if f.severity.value == "error"]
    assert found.rule == "sampling-mask-logprobs-mode"
    assert found.message.startswith(f"with LWS_WORKER_INDEX={number}: ")
    assert found.location is not None
    assert found.location.line == line
    assert verdict.corrected is None
    assert answered(review(subject))["allowed"] is False
    assert patch_of(review(subject)) == []


def test_pods_that_start_no_server_are_left_out() -> None:
    subject = started(FIRST_ONLY % "7 --return-sampling-mask", 3)
    [server] = servers(subject)
    assert [word.text for word in server.words] == ["m", "--seed", "7", "--return-sampling-mask"]
    assert server.pods == ()
    mended = patched(subject, patch_of(review(subject)))
    assert "mask --logprobs-mode processed_logprobs\\nfi" in json.dumps(mended)
    assert answered(review(mended))["allowed"] is True
    assert patch_of(review(mended)) == []


@pytest.mark.parametrize("style", ['"', "|", None])
def test_a_text_is_corrected_in_the_branch_that_is_run(style: str | None) -> None:
    script = (
        'if [ -n "$PER_POD" ]; then \n  vllm serve m -tp $PER_POD --return-sampling-mask \n'
        "else\n  vllm serve other\nfi \n"
    )
    text = yaml.safe_dump(started(script), default_style=style, width=60)
    [server] = read_kubernetes(text)
    [verdict] = judge(Envelope(proposal=server), LIBRARY, "0.32.0")
    assert verdict.corrected is not None
    mended = verdict.corrected["kubernetes"]
    [again] = read_kubernetes(mended)
    assert [w.text for w in again.words][-2:] == ["--logprobs-mode", "processed_logprobs"]
    assert judge(Envelope(proposal=again), LIBRARY, "0.32.0")[0].accepted
    was, now = (
        yaml.safe_load(t)["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
        for t in (text, mended)
    )
    added = " --logprobs-mode processed_logprobs"
    assert now[0]["command"][2] == was[0]["command"][2].replace("mask", f"mask{added}")


@pytest.mark.parametrize(
    "script",
    [
        "if [ -f /leader ]; then exec vllm serve m; fi; exec ray start",
        'if [ "$ROLE$LWS_WORKER_INDEX" = 0 ]; then exec vllm serve m; fi; exec ray start',
        "if [[ $LWS_WORKER_INDEX == 0 ]]; then exec vllm serve m; fi; exec ray start",
        "if [ $LWS_WORKER_INDEX = x ]; then exec vllm serve m; fi; exec ray start",
    ],
)
def test_what_no_index_tells_stays_open(script: str) -> None:
    """Of these `[[` is not to every `sh` what it is to bash."""
    [verdict] = verdicts(started(script))
    assert verdict.outcome is Outcome.UNDETERMINED
    assert {f.rule for f in verdict.findings} == {"kubernetes-script-unread"}


def test_bash_knows_more_than_sh() -> None:
    script = "if [[ $LWS_WORKER_INDEX == 0 ]]; then exec vllm serve m; fi; exec ray start"
    [server] = servers(started(script, program="/bin/bash"))
    assert [word.text for word in server.words] == ["m"]


def test_a_value_that_a_branch_sets_differs_by_pod() -> None:
    script = (
        'if [ "$LWS_WORKER_INDEX" = 0 ]; then SEED=1; else SEED=x; fi\n'
        "exec vllm serve m --seed $SEED"
    )
    [verdict] = verdicts(started(script))
    assert verdict.outcome is Outcome.REJECTED
    [found] = [f for f in verdict.findings if f.severity.value == "error"]
    assert found.message.startswith("with LWS_WORKER_INDEX=1: ")


def test_a_container_that_is_known_to_start_another_program_is_none() -> None:
    script = 'if [ "$PER_POD" = 1 ]; then exec vllm serve m; fi; exec other'
    assert servers(started(script)) == ()


def test_scalars_of_all_styles_are_placed() -> None:
    """Blanks before an escaped line end once left all of a script at its first character."""
    draw = random.Random(7)  # noqa: S311 - no secret
    marks = ["a", "b", " ", "\n", "\\", '"', "'", "\t", "é", ": ", "# ", "x y z w "]
    for _ in range(2_000):
        value = "".join(draw.choice(marks) for _ in range(draw.randint(1, 40)))
        style = draw.choice(['"', "'", "|", ">", None])
        text = yaml.safe_dump({"k": value}, default_style=style, width=draw.choice([20, 80]))
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        assert isinstance(node, yaml.MappingNode)
        index = LineIndex(text, "yaml")
        placed = scalar_text(index, node.value[0][1])
        for i, char in enumerate(value):
            line, column = placed.line_column(i)
            written = text[index.offset(line, column)]
            assert char.isspace() or written in {char, "\\"}
