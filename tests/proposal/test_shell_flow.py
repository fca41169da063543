"""Branches and loops of shell text: which are run, which passed over, which left unread."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from app.catalogue import CatalogueLibrary
from app.errors import AdmissionError, MalformedDocument
from app.proposal.edit import apply_edits
from app.proposal.shell import parse_command
from app.rules.evaluate import validate
from app.verdict.fix import SetFlag

CATALOGUE = CatalogueLibrary().get("0.32.0")


def words(text: str) -> list[str]:
    """Give the words that are read, open ones as `?`."""
    return ["?" if word.unresolved else word.text for word in parse_command(text).words]


def refusal(text: str) -> tuple[str, str]:
    with pytest.raises(MalformedDocument) as caught:
        parse_command(text)
    (problem,) = caught.value.problems
    return problem.code, problem.detail


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        *((text, True) for text in ("true", ":", "! false", "false || true", "[ a ]", "test a")),
        *((text, True) for text in ('[ "$A" = x ]', '[ "$A" == x ]', "[ $A != y ]", "[ -n $A ]")),
        *((text, True) for text in ('[ -z "$E" ]', '[ ! "$E" ]', "[ ! -n '' ]", "[ $N -gt 2 ]")),
        *(
            (text, True)
            for text in ('[ "${U:-7}" -eq 7 ]', '[ "${A:+y}" = y ]', "[[ $L == 'a b' ]]")
        ),
        *((text, True) for text in ("[[ -n $L && ( $N -lt 9 || -f /x ) ]]", "[[ ! -z $A ]]")),
        *((text, True) for text in ('[ "$((N * 2))" -eq 16 ]', "[ -f /x ] || true", "[[ -z $E ]]")),
        *((text, False) for text in ("false", "! true", '[ "$E" ]', "[ -z $A ]", "[ $N -ne 8 ]")),
        *((text, False) for text in ("false && curl x", "[ $U ] && [ -n '' ]", "[[ $A = b ]]")),
        *((text, None) for text in ("curl x", "[ -f /x ]", "[ -d /x ]", '[ "$U" = x ]', "[ a b ]")),
        *((text, None) for text in ("[ $L = a ]", "[ $E = a ]", "[ a -o b ]", "[ $A -eq 1 ]")),
        *((text, None) for text in ("[[ $A == x* ]]", "[[ $A =~ x ]]", "[ 010 -eq 8 ]", "[ * ]")),
        *((text, None) for text in ("[ $1 = a ]", '[ "$(id -u)" = 0 ]', '[ "$RANDOM" = 1 ]')),
        *(
            (text, None)
            for text in ("[ a < b ]", "[ a = a", "[[ a ]", "[[ ( a ]]", "[[ a b c d ]]")
        ),
        *(
            (text, None)
            for text in ("[ ! ! a ]", "true; true", "true | true", "{ true; }", "[ -n ]")
        ),
        *((text, None) for text in ("B=1 [ a ]", '[ "${U:=x}" = x ]', "[ 1 -lt 1e3 ]", "true x")),
        *((text, None) for text in ('[ "${H}" = "~/m" ]', "[ '' -eq 0 ]", "[ a = a ] > /x/y")),
    ],
)
def test_what_conditions_are(condition: str, holds: bool | None) -> None:
    text = f"A=x E= N=8 L='a b' H=~/m\nif {condition}; then X=yes; else X=no; fi\nvllm serve $X"
    assert words(text) == [{True: "yes", False: "no", None: "?"}[holds]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if false; then vllm serve a; elif true; then vllm serve b; else vllm serve c; fi", ["b"]),
        ("if false\nthen\n  vllm serve a\nelse # or\n  vllm serve b\nfi >log 2>&1", ["b"]),
        ("if true; then if false; then vllm serve a; else vllm serve b; fi fi", ["b"]),
        ("if true; then exec vllm serve a; fi; exec vllm serve b", ["a"]),
        ("if true; then exec vllm serve a; fi | tee log", ["a"]),
        ("if [ $U ]; then pip install x; echo vllm serve; fi; vllm serve m", ["m"]),
        ("A=1; if [ $U ]; then unset A; fi; vllm serve $A ${A+x}", ["?", "?"]),
        ("if [ $U ]; then read A; elif b; then :; else export B; fi; vllm serve $A $B", ["?", "?"]),
        ("if x; then cat <<E\nif\nE\nfi; vllm serve m", ["m"]),
        ("[ $U ] && A=1; [ -z x ] || B=2; vllm serve $A $B", ["?", "2"]),
        ("true && A=1 || A=2; false && B=1; vllm serve $A ${B:-0}", ["1", "0"]),
        ("until curl -sf http://x/health; do sleep 2; done; vllm serve m", ["m"]),
        ("while ! nc -z host 1; do echo .; sleep 1; done\nvllm serve m", ["m"]),
        ("for i in 1 2 3; do ping x && break; done; vllm serve m --seed $i", ["m", "--seed", "?"]),
        ("for i\ndo true; done; for j do A=1; done; vllm serve $A", ["?"]),
        ("while true; do if curl x; then break; fi; done; vllm serve m", ["m"]),
        ("while true; do nvidia-smi; sleep 9; done &\nvllm serve m", ["m"]),
        ("N=0; while [ $N -lt 9 ]; do N=$((N + 1)); done; vllm serve $N", ["?"]),
        ("N=9; while [ $N -lt 9 ]; do N=1; vllm serve a; done; vllm serve $N", ["9"]),
        ("cat x | while read -r A; do B=$A; done; vllm serve m $B", ["m", "?"]),
        ("{ A=1; }; { A=2; } | cat; vllm serve m $A", ["m", "?"]),
        ("{ A=1; }; x && { B=2; exit; }; vllm serve $A $B", ["1", "?"]),
        (': "${A:=5}" ${A:=6}; B=; : ${B:=7}; vllm serve $A $B', ["5", "7"]),
        ("A=1; readonly A=2; printf -v B x; vllm serve $A $B", ["?", "?"]),
        ("A=1; if x; then ARGS=(--a); fi; vllm serve m $ARGS", ["m", "?"]),
        ("if exec 3>&1; then :; fi; vllm serve m", ["m"]),
        ("if timeout 1 bash -c '</dev/tcp/h/1'; then :; fi; vllm serve m", ["m"]),
    ],
)
def test_what_is_run_is_read(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("if [ -f /x ]; then vllm serve a; fi", "", "`[ -f /x ]` holds is not known"),
        ("if [ -f /x ]; then exit 1; fi; vllm serve m", "", "`exit` in it ends the script"),
        ("if x; then $CMD; fi; vllm serve m", "", "may start anything"),
        ("if x; then timeout 5 $CMD; fi; vllm serve m", "", "may start a server"),
        ("if x; then exec timeout 5 $CMD; fi; vllm serve m", "", "takes the place"),
        ("if x; then nohup env -i $CMD & fi; vllm serve m", "", "may start a server"),
        ("if x; then sh -c 'vllm serve a'; fi; vllm serve m", "", "may start a server"),
        ("if x; then . ./a; fi; vllm serve m", "", "sets what cannot be known"),
        ("if x; then command export $A; fi; vllm serve m", "", "sets what cannot be known"),
        ("if x; then declare -n A=B; fi; vllm serve m", "", "sets what cannot be known"),
        ("if x; then cat > c <<E\nE\nfi; vllm serve m", "", "writes a file"),
        ('if x; then A="${U:?none}"; fi; vllm serve m', "", "may end the script"),
        ("for i in 1; do vllm serve m; done", "", "this `for` loop is not passed over"),
        ("while true; do sleep 1; done; vllm serve m", "", "does not end"),
        ("until false; do for i in 1; do break; done; done; vllm serve m", "", "does not end"),
        ("if true; then vllm serve m", "", "`if` is not followed by `else` or `elif` or `fi`"),
        ("if true; then fi; vllm serve m", "", "a part of `if` is empty"),
        ("if true; then :; fi x; vllm serve m", "", "nothing can follow `fi`"),
        ("done; vllm serve m", "", "`done`"),
        ("select x in a; do :; done; vllm serve m", "", "`select`"),
        ("A=1 if true; then vllm serve m; fi", "", "`then`"),
        ("if false; then vllm serve m; fi", "shell-not-started", "does not start this server"),
        ("exit 0\nvllm serve m", "shell-not-started", "does not start this server"),
        ("if true; then exec ray start; fi; vllm serve m", "shell-not-started", "does not start"),
        ("if false; then vllm serve m; fi; $CMD", "no-command", "no `vllm serve …` command"),
        ("if true; then echo x; fi", "no-command", "no `vllm serve …` command"),
        ("{ " * 17 + "vllm serve m; " + "}; " * 17, "shell-depth", "not followed further"),
    ],
)
def test_what_is_not_known_stays_unread(text: str, code: str, part: str) -> None:
    told = refusal(text)
    assert told[0] == (code or "shell-compound-command")
    assert part in told[1]


def test_what_a_condition_hangs_on_is_what_is_open() -> None:
    text = 'if [ "$RANK" = 0 ]; then A=1; fi\n[ "$ROLE" ] && export B=2\nvllm serve $A $B'
    assert [word.unresolved for word in parse_command(text).words] == [("A", "RANK"), ("B", "ROLE")]


def test_a_default_that_decides_is_told() -> None:
    text = 'if [ "${RANK:-0}" = 0 ]; then vllm serve a; else vllm serve b; fi'
    assert [(f.rule, str(f.location)) for f in parse_command(text).findings] == [
        ("shell-default-taken", "command:1:7")
    ]


def test_conditions_after_a_sourced_file_are_open() -> None:
    assert words(". ./env\nA=1\nif [ $A = 1 ]; then B=2; fi\nvllm serve $A $B") == ["1", "?"]


@pytest.mark.parametrize(
    ("text", "outcome", "rules"),
    [
        ("vllm serve $A org/model", "undetermined", ["shell-unresolved-words"]),
        ("vllm serve $A $B org/model", "undetermined", ["shell-unresolved-words"] * 2),
        ("if x; then A=--seed=1; fi; vllm serve $A org/model", "undetermined", None),
        ("vllm serve $A org/model b", "rejected", ["cli-extra-argument", "shell-unresolved-words"]),
        ("vllm serve /m/$A b", "rejected", None),
    ],
)
def test_an_open_word_before_the_model_is_not_taken_for_it(
    text: str, outcome: str, rules: list[str] | None
) -> None:
    verdict = validate(parse_command(text), CATALOGUE)
    assert verdict.outcome.value == outcome
    assert rules is None or [finding.rule for finding in verdict.findings] == rules


def test_an_edit_is_made_in_the_branch_that_is_run() -> None:
    text = (
        "R=1\nif [ $R = 0 ]; then\n  exec vllm serve m --seed 1\nelse\n"
        "  exec vllm serve m \\\n    --seed 2\nfi\n"
    )
    edits = [SetFlag("seed", 3), SetFlag("max_model_len", 4096)]
    edited = apply_edits(parse_command(text), edits, CATALOGUE)
    expected = text.replace("--seed 2", "--seed 3 \\\n    --max-model-len 4096")
    assert edited.source == expected
    assert [word.text for word in edited.words] == ["m", "--seed", "3", "--max-model-len", "4096"]


@pytest.mark.parametrize(
    "text",
    [
        "if " * 60_000,
        "! " * 100_000 + "vllm serve m",
        "if [[ " + "( " * 100_000 + "]]; then vllm serve m; fi",
        "[[ " * 60_000,
        "[[ ]] " * 40_000,
        "X=1; if [[ " + "$X && " * 40_000 + "1 ]]; then vllm serve m; fi",
        "if " + "[ $U = 1 ] && " * 900 + "true; then A=1; fi; vllm serve m",
        "if [ $U = 1 ]; then A=1; " + "elif [ $U = 2 ]; then A=2; " * 450 + "fi\nvllm serve m",
        "X=" + "a" * 100_000 + "\n" + 'if [ "$X$X$U" = b ]; then A=1; fi\n' * 240 + "vllm serve m",
        "while [ $U ]; do A=1; done\n" * 330 + "vllm serve m",
        ("{ " * 16 + "A=1; " + "} | cat; " * 16) * 25 + "vllm serve m",
        "if x; then " + ("foo " + "x " * 100 + "vllm\n") * 900 + "fi; vllm serve m",
    ],
)
def test_scripts_are_read_in_time(text: str) -> None:
    begin = time.perf_counter()
    with suppress(AdmissionError):
        parse_command(text)
    assert time.perf_counter() - begin < 5
