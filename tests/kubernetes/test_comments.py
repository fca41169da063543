"""Notes for people: what comments of a manifest say of the GPU, and what they do not."""

from __future__ import annotations

import json
import textwrap

import pytest
import yaml

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of
from app.kubernetes.read import read_kubernetes
from app.verdict.finding import Finding, Severity
from tests.kubernetes.test_cases import CASES, verdict_of
from tests.kubernetes.test_gpus import verdict_of as verdict_of_server

RULE = "kubernetes-gpu-share"


def pod(note: str = "", *, behind: str = "", args: str = "m, --port, '8000'") -> str:
    return (
        f"{note}\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n"
        f"  - name: server\n    image: vllm/vllm-openai:v0.32.0\n    args: [{args}]\n{behind}\n"
    )


def told(text: str) -> list[Finding]:
    """Give what is said of shares, of all servers of a text."""
    return [
        finding
        for server in read_kubernetes(text, source="f")
        for finding in verdict_of_server(server).findings
        if finding.rule == RULE
    ]


@pytest.mark.parametrize(
    "comment",
    [
        "GPU shared with a sleeping instance",
        "the GPU is shared",
        "these GPUs are time-sliced between teams",
        "shares the GPU with the embedding server",
        "Sharing a single GPU among two pods.",
        "runs on the same GPU as the reranker",
        "accelerator co-located with training",
        "on a shared GPU",
    ],
)
def test_a_comment_that_shares_the_gpu(comment: str) -> None:
    for text in (pod(f"# {comment}"), pod(behind=f"    # {comment}"), pod(behind=f"# {comment}")):
        [found] = told(text)
        assert found.severity is Severity.WARNING
        assert comment in found.message
        [note] = found.related
        assert note.line is not None
        assert note.text == f"# {comment}"
        assert text.splitlines()[note.line - 1].strip() == note.text


@pytest.mark.parametrize(
    "comment",
    [
        "the GPU is not shared",
        "never share the GPU",
        "an exclusive GPU, no shared GPU here",
        "shared memory for several GPUs",
        "GPU shared memory",
        "from the shared GPU pool",
        "on the shared GPU nodes",
        "GPU",
        "if the GPU is shared, lower the utilisation",
        "share the load between GPUs",
    ],
)
def test_a_comment_that_does_not(comment: str) -> None:
    assert told(pod(f"# {comment}")) == []


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("shared with the reranker", 1),
        ("time-sliced between two teams", 1),
        ("not shared with anybody", 0),
        ("shared", 0),
        ("one for each rank", 0),
    ],
)
def test_a_comment_behind_a_line_about_gpus(comment: str, expected: int) -> None:
    limits = f"    resources:\n      limits:\n        nvidia.com/gpu: 1 # {comment}"
    assert len(told(pod(behind=limits))) == expected
    memory = f"    resources:\n      limits:\n        memory: 8Gi # {comment}"
    assert told(pod(behind=memory)) == []


def test_lines_are_one_comment() -> None:
    [found] = told(pod("# This GPU is\n# shared with the reranker.", behind="# end"))
    assert '"This GPU is shared with the reranker."' in found.message
    assert told(pod("# This GPU is\n\n# shared with the reranker.")) == []


def test_a_part_that_fits_is_in_order() -> None:
    assert told(pod("# the GPU is shared", args="m, --gpu-memory-utilization, '0.4'")) == []


def test_what_the_operator_says_counts_alone() -> None:
    said = "metadata: {name: p, annotations: {vllm-admission/gpu-memory-in-use: '0.01'}}"
    text = pod("# the GPU is shared").replace("metadata: {name: p}", said)
    assert said in text
    assert told(text) == []


def test_parts_that_may_be_kept_apart_are_an_open_question() -> None:
    text = pod("# the GPU is shared by MPS")
    assert told(text) == []
    [server] = read_kubernetes(text)
    [skipped] = [s for s in verdict_of_server(server).not_checked if s.rule == RULE]
    assert "MPS" in skipped.needs


def test_a_hash_in_a_value_is_no_comment() -> None:
    for value in (
        '"x # the GPU is shared"',
        "'# the GPU is shared'",
        "|\n    # the GPU is shared\n    y",
        "x# the GPU is shared",
    ):
        text = pod().replace("{name: p}", f"\n  name: p\n  annotations:\n   note: {value}")
        assert told(text) == []


TWO = """\
# {0}
kind: Deployment
metadata: {{name: a}}
spec:
  template:
    spec:
      containers:
      - name: one # {1}
        image: vllm/vllm-openai:v0.32.0
        args: [m]
        # {2}
      - name: two
        # {3}
        image: vllm/vllm-openai:v0.32.0
        args: [m, --port, '8001']
      # {4}
---
# {5}
kind: Pod
metadata: {{name: b}}
spec:
  # {6}
  containers: [{{name: three, image: 'vllm/vllm-openai:v0.32.0', args: [m]}}] # {7}
"""


@pytest.mark.parametrize(
    ("place", "servers"),
    [
        (0, ["one", "two"]),
        (1, ["one"]),
        (2, ["one"]),
        (3, ["two"]),
        (4, ["one", "two"]),
        (5, ["three"]),
        (6, ["three"]),
        (7, ["three"]),
    ],
)
def test_whose_comment_it_is(place: int, servers: list[str]) -> None:
    notes = ["the GPU is shared" if i == place else "" for i in range(8)]
    found = [
        server.workload.container["name"]
        for server in read_kubernetes(TWO.format(*notes))
        if server.workload is not None and server.workload.gpu_share is not None
    ]
    assert found == servers


def test_items_of_a_list_have_their_own() -> None:
    items = textwrap.indent(pod("# the GPU is shared").strip(), "  ")
    other = textwrap.indent(pod().strip(), "  ")
    items = f"apiVersion: v1\nkind: List\nitems:\n-\n{items}\n-\n{other}\n"
    assert [f.location.line for f in told(items) if f.location] == [5]


def test_custom_resources_have_them_too() -> None:
    text = textwrap.dedent(
        """\
        servingEngineSpec:
          modelSpec:
          - name: tiny
            # NOTE
            repository: vllm/vllm-openai
            tag: v0.32.0
            modelURL: org/tiny
            requestGPU: 1
        """
    )
    assert told(text) == []
    [found] = told(text.replace("NOTE", "several servers sleep, sharing one GPU"))
    assert "servers that sleep there keep a part of it" in found.message


def test_parts_of_a_custom_resource_have_their_own() -> None:
    text = textwrap.dedent(
        """\
        apiVersion: nvidia.com/v1alpha1
        kind: DynamoGraphDeployment
        metadata: {name: g}
        spec:
          services:
            Decode:
              # the GPU is shared
              extraPodSpec:
                mainContainer:
                  image: vllm/vllm-openai:v0.32.0
                  args: [-m, dynamo.vllm, --model, org/m]
            Other:
              extraPodSpec:
                mainContainer:
                  image: vllm/vllm-openai:v0.32.0
                  args: [-m, dynamo.vllm, --model, org/m]
        """
    )
    assert [f.location.line for f in told(text) if f.location] == [7]


def test_the_case_word_for_word() -> None:
    verdict = verdict_of(CASES["b17"]["input"])
    [found] = [f for f in verdict.findings if f.severity is Severity.WARNING]
    assert found.rule == RULE
    assert "servers that sleep there keep a part of it" in found.message
    assert "0.825" in found.message
    assert found.location is not None
    assert (found.location.line, found.location.column) == (3, 56)


def test_an_api_server_has_none() -> None:
    data = yaml.safe_load(CASES["b17"]["input"])
    [server] = servers_in([manifest_of(json.loads(json.dumps(data)))])
    assert server.workload is not None
    assert server.workload.gpu_share is None
