from __future__ import annotations

import pytest

from app.errors import AdmissionError, MalformedDocument, PayloadTooLarge
from app.proposal.proposal import Entrypoint, Form, Proposal
from app.proposal.shell import MAX_COMMANDS, MAX_TEXT, MAX_WORDS, parse_command


def texts(text: str) -> list[str]:
    return [word.text for word in parse_command(text).words]


def environment(proposal: Proposal) -> dict[str, str]:
    return {name: variable.value for name, variable in proposal.environment.items()}


def refusal(text: str) -> tuple[str, int | None, int | None]:
    with pytest.raises(MalformedDocument) as caught:
        parse_command(text)
    (problem,) = caught.value.problems
    return problem.code, problem.line, problem.column


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm serve m --port 8000", ["m", "--port", "8000"]),
        ("  vllm   serve\tm  ", ["m"]),
        ("vllm serve m \\\n  --port \\\n 8000", ["m", "--port", "8000"]),
        ("vllm serve m \\\r\n  --port 8000\r\n", ["m", "--port", "8000"]),
        ("vllm serve 'a b' \"c d\" e\\ f", ["a b", "c d", "e f"]),
        ("vllm serve a'b'\"c\"d", ["abcd"]),
        ("vllm serve '' m", ["", "m"]),
        ('vllm serve m --x \'{"a": "$B"}\'', ["m", "--x", '{"a": "$B"}']),
        ('vllm serve "a\\"b\\$c\\d\\\ne"', ['a"b$c\\de']),
        ("vllm serve $'a\\tb\\'c'", ["a\tb'c"]),
        ("vllm serve m # --port 8000", ["m"]),
        ("vllm serve m a#b", ["m", "a#b"]),
        ("# first\n\nvllm serve m\n# last", ["m"]),
        ("$ vllm serve m", ["m"]),
        ("/opt/bin/vllm serve m", ["m"]),
        ("exec vllm serve m", ["m"]),
        ("numactl -N 0 nohup vllm serve m", ["m"]),
        ("python -m vllm.entrypoints.cli.main serve m", ["m"]),
        ("cd /srv && vllm serve m", ["m"]),
        ("set -euo pipefail; vllm serve m; echo done", ["m"]),
        ("vllm serve m > out.log 2>&1 &", ["m"]),
        ("vllm serve m 2>&1 | tee out.log", ["m"]),
        ("vllm serve m &> out.log --port 1", ["m", "--port", "1"]),
        ("org/model --port 8000", ["org/model", "--port", "8000"]),
        ("--model m", ["--model", "m"]),
        ("vllm serve m --glob * ?", ["m", "--glob", "*", "?"]),
        ("vllm serve m\\", ["m"]),
    ],
)
def test_words_are_those_that_a_shell_passes_on(text: str, words: list[str]) -> None:
    assert texts(text) == words


def test_words_have_line_column_and_index() -> None:
    proposal = parse_command("export A=1\nvllm serve m \\\n  --x 'a b'", source="run.sh")
    places = [w.location for w in proposal.words]
    assert [(p.argv_index, p.line, p.column, p.end_column) for p in places] == [
        (0, 2, 12, 13),
        (1, 3, 3, 6),
        (2, 3, 7, 12),
    ]
    assert {p.source for p in places} == {"run.sh"}
    assert places[2].text == "'a b'"
    assert proposal.form is Form.COMMAND


def test_a_variable_assigned_before_is_put_in_and_split_outside_quotes() -> None:
    proposal = parse_command("A='x  y'\nexport B=1\nvllm serve \"$A\" $A p${B}q ${C:-z} $EMPTY")
    assert [w.text for w in proposal.words] == ["x  y", "x", "y", "p1q", "z", "$EMPTY"]
    assert [w.unresolved for w in proposal.words] == [(), (), (), (), (), ("EMPTY",)]
    assert [(f.rule, str(f.location)) for f in proposal.findings] == [
        ("shell-default-taken", "command:3:27")
    ]


def test_defaults_of_assigned_variables_follow_the_shell() -> None:
    assert texts("A=\nB=2\nvllm serve ${A:-d} ${A-d}m ${B:+s} ${A:+s} ${B-d}") == [
        "d",
        "m",
        "s",
        "2",
    ]


def test_an_assignment_before_the_command_is_environment_but_not_yet_expanded() -> None:
    proposal = parse_command("A=1 vllm serve $A")
    assert environment(proposal) == {"A": "1"}
    assert proposal.words[0].unresolved == ("A",)


@pytest.mark.parametrize("text", ["$(nproc)", "`nproc`", "${A%x}", "$1", "$((2**3))", "<(cat x)"])
def test_what_only_the_shell_can_tell_stays_unresolved(text: str) -> None:
    (word,) = parse_command(f"vllm serve {text}").words
    assert word.text == text
    assert word.unresolved


def test_environment_comes_from_exports_env_and_the_line_itself() -> None:
    proposal = parse_command(
        "export A=1 B='2 3'\nC=4\nexport C\nexport D=5; unset D\nE=6 exec env -u A F=7 vllm serve m"
    )
    assert environment(proposal) == {"B": "2 3", "C": "4", "E": "6", "F": "7"}
    place = proposal.environment["B"].location
    assert (place.variable, place.line, place.column) == ("B", 1, 12)
    assert proposal.findings == ()


def test_env_minus_i_clears_the_environment() -> None:
    assert environment(parse_command("export A=1\nenv -i B=2 vllm serve m")) == {"B": "2"}


def test_an_assignment_that_is_not_exported_counts_and_is_reported() -> None:
    proposal = parse_command("VLLM_X=0\nPORT=1\nvllm serve m --port $PORT")
    assert environment(proposal)["VLLM_X"] == "0"
    assert [(f.rule, str(f.location)) for f in proposal.findings] == [
        ("shell-not-exported", "command:1:1")
    ]


def test_a_sourced_file_leaves_the_verdict_open() -> None:
    (found,) = parse_command("source env.sh\nvllm serve m").findings
    assert (found.rule, found.undecided) == ("shell-not-followed", True)


def test_a_here_document_written_by_cat_becomes_a_file() -> None:
    proposal = parse_command(
        "cat > c.yaml <<'EOF'\nport: $PORT\nEOF\ncat <<-X >d.yaml\n\ta: 1\n\tX\n"
        "vllm serve m --config c.yaml"
    )
    assert proposal.files == {"c.yaml": "port: $PORT\n", "d.yaml": "a: 1\n"}


def test_a_here_document_that_expands_is_not_taken_for_its_text() -> None:
    assert parse_command("cat > c.yaml <<EOF\nport: $PORT\nEOF\nvllm serve m").files == {}


def test_the_module_entry_point_is_told_apart() -> None:
    proposal = parse_command("python3.12 -u -m vllm.entrypoints.openai.api_server --model m")
    assert proposal.entrypoint is Entrypoint.API_SERVER
    assert [w.text for w in proposal.words] == ["--model", "m"]


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("vllm serve 'm", "shell-unclosed-quote", 1, 12),
        ('vllm serve m\n "a', "shell-unclosed-quote", 2, 2),
        ("vllm serve `m", "shell-unclosed-quote", 1, 12),
        ("vllm serve $'m", "shell-unclosed-quote", 1, 12),
        ("vllm serve $(m", "shell-unclosed-substitution", 1, 13),
        ("vllm serve m \\ \n --port 1", "shell-broken-continuation", 1, 14),
        ("if ready; then vllm serve m; fi", "shell-compound-command", 1, 16),
        ("(vllm serve m)", "shell-compound-command", 1, 1),
        ("vllm serve m >", "shell-redirection", 1, 14),
        ("cat <<EOF\nvllm serve m", "shell-here-document", 1, 7),
        ("vllm serve a\nvllm serve b", "several-commands", 2, 1),
        ("vllm bench serve", "not-serve", 1, 1),
        ("python train.py", "no-command", 1, 1),
        ("docker ps", "no-command", 1, 1),
        ("docker run --gpus all", "docker-no-image", 1, 8),
        ("docker run --gpu all vllm/vllm-openai m", "docker-unknown-option", 1, 12),
        ("docker run -Z vllm/vllm-openai m", "docker-unknown-option", 1, 12),
        ("docker run -e", "docker-no-value", 1, 12),
        ("docker run nginx", "image-not-read", 1, 12),
        ("docker run nginx bash start.sh", "image-not-read", 1, 12),
        ("bash start.sh", "no-command", 1, 1),
        ("bash -c 'echo \nvllm serve \"m'", "shell-unclosed-quote", 2, 12),
        ("A=(a", "shell-unclosed-array", 1, 1),
        ("A=(a; b)", "shell-array", 1, 5),
        ("", "no-command", 1, 1),
        ("vllm serve a\0b", "nul-character", 1, 13),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    text: str, code: str, line: int, column: int
) -> None:
    assert refusal(text) == (code, line, column)


def test_text_and_words_are_bounded() -> None:
    with pytest.raises(PayloadTooLarge):
        parse_command("x" * (MAX_TEXT + 1))
    with pytest.raises(PayloadTooLarge):
        parse_command("vllm serve " + "a " * (MAX_WORDS + 1))
    with pytest.raises(PayloadTooLarge):
        parse_command("a;" * (MAX_COMMANDS + 1))


def test_variables_that_double_each_other_are_refused_in_time() -> None:
    doubling = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40
    with pytest.raises(AdmissionError):
        parse_command(doubling + "vllm serve $A")


@pytest.mark.parametrize(
    ("script", "value", "unresolved"),
    [
        ('sh -c "N=2; vllm serve m -tp $N"', "$N", ("N",)),
        ('sh -c "N=2; vllm serve m -tp ${N}"', "${N}", ("N",)),
        ('sh -c "N=2; vllm serve m -tp $((N * 3))"', "$((N * 3))", ("N",)),
        ("sh -c 'N=2; vllm serve m -tp $N'", "2", ()),
        ('sh -c "N=2; vllm serve m -tp \\$N"', "2", ()),
        ('N=4; sh -c "N=2; vllm serve m -tp $N"', "4", ()),
        ('sh -c "N=2; M=3; vllm serve $M -tp ${N:-8}"', "8", ()),
    ],
)
def test_who_expands_a_variable_of_a_script(
    script: str, value: str, unresolved: tuple[str, ...]
) -> None:
    """In double quotes the shell around the script does, before the script assigns anything."""
    last = parse_command(script).words[-1]
    assert (last.text, last.unresolved) == (value, unresolved)


@pytest.mark.parametrize(
    ("line", "followed"),
    [
        ("source /opt/vllm/bin/activate", True),
        (". .venv/bin/activate", True),
        ("trap 'kill 0' EXIT", True),
        ("trap cleanup SIGTERM INT", True),
        ("source /opt/vllm/bin/activate fast", False),
        ("source $HOME/bin/activate", False),
        ("source activate", False),
        ("source env.sh", False),
        ("trap 'export VLLM_PORT=1' DEBUG", False),
        ("trap", False),
    ],
)
def test_what_sets_no_variable_of_the_server(line: str, followed: bool) -> None:
    found = [f.rule for f in parse_command(f"{line}\nvllm serve m").findings]
    assert found == ([] if followed else ["shell-not-followed"])
