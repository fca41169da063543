from __future__ import annotations

import pytest

from app.catalogue import CatalogueLibrary
from app.errors import InvalidEnvelope, MalformedDocument
from app.proposal.compose import read_compose
from app.proposal.edit import apply_edits
from app.proposal.proposal import Entrypoint, Hardware, Proposal
from app.verdict.fix import RemoveFlag, ReplaceArgument, SetEnvironment, SetFlag, UnsetEnvironment

CATALOGUE = CatalogueLibrary().get("0.32.0")
HEAD = "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n"


def service(body: str, **files: str) -> Proposal:
    (proposal,) = read_compose(HEAD + body, files=files)
    return proposal


def texts(body: str) -> list[str]:
    return [word.text for word in service(body).words]


def environment(proposal: Proposal) -> dict[str, str]:
    return {name: variable.value for name, variable in proposal.environment.items()}


def refusal(text: str) -> tuple[str, int | None, int | None]:
    with pytest.raises(MalformedDocument) as caught:
        read_compose(text)
    (problem,) = caught.value.problems
    return problem.code, problem.line, problem.column


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("command: m --port 1\n", ["m", "--port", "1"]),
        ("command: [m, --port, '1']\n", ["m", "--port", "1"]),
        ("command:\n      - m\n      - --port=1\n", ["m", "--port=1"]),
        ("command: >\n      m\n      --port 1\n", ["m", "--port", "1"]),
        ("command: |\n      m\n      --port 1\n", ["m", "--port", "1"]),
        ('command: m \'a  b\' "c\\"d" e\\ f\n', ["m", "a  b", 'c"d', "e f"]),
        ('command: "m --x \'{\\"a\\": 1}\'"\n', ["m", "--x", '{"a": 1}']),
        ("command: 'm --x ''{\"a\": 1}'''\n", ["m", "--x", '{"a": 1}']),
        ("command: m --x $$HOME a$$b\n", ["m", "--x", "$HOME", "a$b"]),
        ("command: m --port ${PORT:-1} ${X:+y}z ${A:-${B:-c}}\n", ["m", "--port", "1", "z", "c"]),
        ("command: m --x `a b` $$(c d)\n", ["m", "--x", "`a b`", "$(c d)"]),
        ("command: m ''\n", ["m", ""]),
        ("command: []\n", []),
        ("entrypoint: vllm serve\n    command: m --port 1\n", ["m", "--port", "1"]),
        ("entrypoint: [bash, -c, 'vllm serve m --port 1']\n", ["m", "--port", "1"]),
        ("entrypoint: ''\n    command: vllm serve m\n", ["m"]),
        ("entrypoint:\n    command: m\n", ["m"]),
    ],
)
def test_words_are_those_that_compose_passes_on(command: str, words: list[str]) -> None:
    assert texts(f"    {command}") == words


def test_words_have_their_place_and_pointer() -> None:
    proposal = service("    command:\n      - m\n      - \"--port\"\n      - 'a b'\n")
    places = [word.location for word in proposal.words]
    assert [(p.argv_index, p.line, p.column, p.pointer) for p in places] == [
        (0, 5, 9, "/services/a/command/0"),
        (1, 6, 9, "/services/a/command/1"),
        (2, 7, 9, "/services/a/command/2"),
    ]


@pytest.mark.parametrize(
    ("command", "places"),
    [
        ("command: m --port 1", [(4, 14), (4, 16), (4, 23)]),
        ("command: >\n      m\n      --port   1", [(5, 7), (6, 7), (6, 16)]),
        ("command: |\n      m\n\n      --port 1", [(5, 7), (7, 7), (7, 14)]),
        ("command: 'm ''--port'' 1'", [(4, 15), (4, 17), (4, 28)]),
        ('command: "m \\"--port\\" 1"', [(4, 15), (4, 17), (4, 28)]),
        ("command: m\n      --port\n      1", [(4, 14), (5, 7), (6, 7)]),
        ("command: $$m ${A:---port} 1", [(4, 14), (4, 18), (4, 31)]),
    ],
)
def test_words_of_a_string_have_their_place_in_the_file(
    command: str, places: list[tuple[int, int]]
) -> None:
    found = [word.location for word in service(f"    {command}\n").words]
    assert [(place.line, place.column) for place in found] == places


def test_variables_without_a_value_stay_open_and_defaults_are_told() -> None:
    proposal = service("    command: m --port ${PORT} --x ${X:-1} ${Y:?no}\n")
    assert [(w.text, w.unresolved) for w in proposal.words][2:] == [
        ("${PORT}", ("PORT",)),
        ("--x", ()),
        ("1", ()),
        ("${Y:?no}", ("Y",)),
    ]
    assert [(f.rule, f.location and f.location.column) for f in proposal.findings] == [
        ("compose-variable", 35)
    ]


def test_variables_of_the_dot_env_file_are_put_in() -> None:
    (proposal,) = read_compose(
        HEAD + "    command: m --port ${PORT:-1} ${EMPTY-2} ${EMPTY:-3} ${Y+4}\n",
        files={".env": "PORT=9\nEMPTY=\nY='y'\n"},
    )
    assert [word.text for word in proposal.words] == ["m", "--port", "9", "3", "4"]
    assert proposal.findings == ()


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("command: m --port 1 > log", "compose-command-cut"),
        ("command: m && echo", "compose-command-cut"),
        ("command: |\n      m \\\n      --port 1", "compose-line-end-escaped"),
        ("command: [m, --port, 8000]", "compose-not-a-string"),
        ("entrypoint: [bash, -c]\n    command: vllm serve m", "shell-one-word-script"),
        ("command: m\n    env_file: prod.env", "env-file-unseen"),
        ("command: m\n    env_file: [{path: prod.env}]", "env-file-unseen"),
    ],
)
def test_traps_of_compose_are_told_of(command: str, rule: str) -> None:
    found = service(f"    {command}\n").findings
    assert [finding.rule for finding in found] == [rule]
    assert found[0].location is not None


def test_the_environment_is_what_file_and_members_say() -> None:
    files = {"a.env": "A=1\nB=2 # c\nexport C='3'\n"}
    body = "    env_file:\n      - a.env\n      - {path: b.env, required: false}\n"
    proposal = service(body + "    environment:\n      B: 4\n      D:\n      E: $$x\n", **files)
    assert environment(proposal) == {"A": "1", "B": "4", "C": "3", "D": "$D", "E": "$x"}
    assert proposal.environment["D"].unresolved == ("D",)
    assert proposal.findings == ()
    listed = service("    environment: [A=1, 'B=x y', C]\n")
    assert environment(listed) == {"A": "1", "B": "x y", "C": "$C"}


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("    gpus: all\n", None),
        ("    gpus:\n      - count: 4\n", 4),
        ("    deploy: {resources: {reservations: {devices: [{count: 2}]}}}\n", 2),
        ("    deploy: {resources: {reservations: {devices: [{device_ids: ['0', '3']}]}}}\n", 2),
        ("    deploy: {resources: {reservations: {devices: [{count: all}]}}}\n", None),
        ("    deploy: {}\n", None),
    ],
)
def test_reserved_devices_are_counted(body: str, count: int | None) -> None:
    assert service(body).hardware == (None if count is None else Hardware(count=count))


def test_every_service_of_vllms_is_a_proposal_of_its_own() -> None:
    proposals = read_compose(
        "x-a: &a\n  image: vllm/vllm-openai:v0.31.0\n"
        "services:\n  web: {image: nginx}\n  one: {<<: *a, command: [m]}\n"
        "  two:\n    build: .\n    command: python -m vllm.entrypoints.openai.api_server\n"
        "  three: {image: busybox, command: sleep 1}\n"
    )
    assert [(p.subject, p.entrypoint) for p in proposals] == [
        ("one", Entrypoint.SERVE),
        ("two", Entrypoint.API_SERVER),
    ]


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("services: 1\n", "compose", 1, 1),
        ("services:\n  a: {image: vllm/x}\n  a: {image: vllm/x}\n", "compose", 3, 3),
        (HEAD + "    command: {a: 1}\n", "compose", 4, 14),
        (HEAD + "    command: [[a]]\n", "compose", 4, 15),
        (HEAD + "    command: m 'a\n", "compose-command", 4, 16),
        (HEAD + "    command: (m)\n", "compose-command", 4, 14),
        (HEAD + "    command: m \\\n", "compose-command", 4, 16),
        (HEAD + "    command: a $ b\n", "compose-interpolation", 4, 16),
        (HEAD + "    command: a ${1}\n", "compose-interpolation", 4, 16),
        (HEAD + "    command: 'vllm'\n  b: [\n", "malformed-yaml", 6, 1),
    ],
)
def test_what_compose_refuses_is_refused_with_its_place(
    text: str, code: str, line: int, column: int
) -> None:
    assert refusal(text) == (code, line, column)


def test_a_file_without_vllm_is_refused() -> None:
    with pytest.raises(InvalidEnvelope, match="no vLLM server"):
        read_compose("services:\n  web: {image: nginx}\n")


BEFORE = """services:
  a:
    image: vllm/vllm-openai:v0.32.0
    command:  # what it runs
      - m
      - --port   # http
      - "8000"
    environment:
      A: 1  # one
"""


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (SetFlag("port", 9), '- "8000"', '- "9"'),
        (
            SetFlag("max_model_len", 8),
            '      - "8000"\n',
            '      - "8000"\n      - --max-model-len\n      - "8"\n',
        ),
        (RemoveFlag("port"), '      - --port   # http\n      - "8000"\n', ""),
        (ReplaceArgument(1, "--host"), "- --port   #", "- --host   #"),
        (SetEnvironment("A", "$2"), "A: 1  #", 'A: "$$2"  #'),
        (SetEnvironment("B", "2"), "A: 1  # one\n", 'A: 1  # one\n      B: "2"\n'),
        (UnsetEnvironment("A"), "    environment:\n      A: 1  # one\n", ""),
        (SetFlag("model", "n"), "- m\n", "- n\n"),
    ],
    ids=str,
)
def test_an_edit_keeps_the_layout_and_the_comments(
    edit: SetFlag | RemoveFlag | ReplaceArgument | SetEnvironment | UnsetEnvironment,
    old: str,
    new: str,
) -> None:
    (proposal,) = read_compose(BEFORE)
    assert old in BEFORE
    assert apply_edits(proposal, [edit], CATALOGUE).source == BEFORE.replace(old, new)


def test_words_are_added_where_there_were_none() -> None:
    proposal = service("    ipc: host\n")
    edited = apply_edits(proposal, [SetFlag("port", 9), SetEnvironment("A", "1")], CATALOGUE)
    assert [word.text for word in edited.words] == ["--port", "9"]
    assert environment(edited) == {"A": "1"}
    assert "    ipc: host\n" in (edited.source or "")


def test_all_words_can_go() -> None:
    for body in ("    command:\n      - --port\n      - '1'\n", "    command: [--port, '1']\n"):
        edited = apply_edits(service(body), [RemoveFlag("port")], CATALOGUE)
        assert edited.words == ()
