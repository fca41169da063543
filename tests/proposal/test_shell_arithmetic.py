"""The value of `$((…))`, against shells and within a proposal."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalogue import CatalogueLibrary
from app.proposal.edit import apply_edits
from app.proposal.proposal import Proposal
from app.proposal.shell import parse_command
from app.proposal.shell_arithmetic import MAX_LENGTH, assigned_in, evaluated
from app.verdict.fix import SetFlag

CATALOGUE: Final = CatalogueLibrary().get("0.32.0")

SHELLS: Final = [name for name in ("sh", "bash", "dash") if shutil.which(name)]
# `none` is set nowhere, and so is 0; the others are what shells read as whole numbers.
HELD: Final = {
    "one": "1",
    "ranks": "8",
    "minus": "-5",
    "plus": "+7",
    "octal": "017",
    "hex": "0x1f",
    "padded": " 12\t",
    "below": "-010",
    "empty": "",
    "zero": "0",
    "none": "",
}
SIGNED: Final = ["+", "-", "~", "!"]
BINARY: Final = [
    "&",
    "^",
    "|",
    "&&",
    "||",
    "*",
    "/",
    "%",
    "+",
    "-",
    "<<",
    ">>",
    "<",
    "<=",
    ">",
    ">=",
    "==",
    "!=",
]
SHIFTS: Final = frozenset({"<<", ">>"})


def expression(draw: random.Random, depth: int = 0) -> str:
    """Draw an expression; blanks and parentheses stand where they matter and where not."""
    kind = draw.random() + depth / 8
    if kind > 0.8:
        name = draw.choice(list(HELD))
        leaves = [
            str(draw.randint(0, 40)),
            f"0{draw.randint(0, 63):o}",
            f"0x{draw.randint(0, 63):X}",
        ]
        # Nothing but blanks is 0 to bash and an error to dash.
        dollar = {"none": "${none:-0}", "empty": "0$empty"}.get(name, f" ${name}")
        return draw.choice([*leaves, name, dollar])
    gap = draw.choice(["", " ", "\n", "\t "])
    if kind < 0.1:
        return f"({gap}{expression(draw, depth + 1)}{gap})"
    if kind < 0.2:
        # A blank, since two signs are one operator, and `$minus` brings one along.
        return f"{draw.choice(SIGNED)} {expression(draw, depth + 1)}"
    if kind < 0.27:
        parts = [expression(draw, depth + 1) for _ in range(3)]
        return f"{parts[0]}{gap}?{gap}{parts[1]}{gap}: {parts[2]}"
    operator = draw.choice(BINARY)
    right = str(draw.randint(0, 5)) if operator in SHIFTS else expression(draw, depth + 1)
    return f"{expression(draw, depth + 1)}{gap}{operator} {right}"


def drawn(count: int) -> list[str]:
    draw = random.Random(20261202)  # noqa: S311 - no secret
    return [expression(draw) for _ in range(count)]


def answers(shell: str, expressions: list[str]) -> list[str]:
    """Ask a shell for the values, each in a process of its own: an error ends that alone."""
    lines = [f"{name}='{value}'" for name, value in HELD.items() if name != "none"]
    lines += [f"(printf '%s' \"$(({one}))\") 2>/dev/null; echo ';'" for one in expressions]
    done = subprocess.run(
        [shell], input="\n".join(lines), capture_output=True, text=True, timeout=60, check=False
    )
    found = done.stdout.split(";\n")
    assert len(found) == len(expressions) + 1
    return found[:-1]


def substituted(text: str) -> str:
    """Put values in where `$` asks for them, as a shell does before it reads the expression."""
    text = text.replace("${none:-0}", "0")
    for name, value in HELD.items():
        text = text.replace(f"${name}", value)
    return text


@pytest.mark.parametrize("shell", SHELLS)
def test_values_are_those_of_a_shell(shell: str) -> None:
    expressions = drawn(600)
    ours = [value_of(one) for one in expressions]
    told = answers(shell, expressions)
    differing = [row for row in zip(expressions, ours, told, strict=True) if row[1] != row[2]]
    # C leaves open what a shift by less than nothing gives, and so do we.
    assert [row for row in differing if row[1] or not re.search("<<|>>", row[0])] == []
    assert len(differing) < 12 < ours.count("") < 60 < len(set(ours))


def value_of(one: str) -> str:
    value = evaluated(substituted(one), HELD.get)
    return str(value) if isinstance(value, int) else ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 % 4 - 5", -2),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("010 + 0x1F + 0", 39),
        ("1 << 3 - 1", 4),
        ("-9 >> 1", -5),
        ("1 | 2 ^ 3 & 5", 3),
        ("2 < 3 == 1 != 0", 1),
        ("! 0 + ~ 5", -5),
        ("0 || 7", 1),
        ("0 && 1 / 0", 0),
        ("1 || 1 / 0", 1),
        ("0 ? 1 / 0 : 1 ? 2 : 3", 2),
        ("1 ? 0 && 5 % 0 : 1 / 0", 0),
        ("0 && (unknown + 1)", 0),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775807 - 1", -(2**63)),
        ("minus * - minus", -25),
        ("octal + hex + padded + empty", 58),
        ("((((8))))", 8),
    ],
)
def test_values_by_the_grammar_of_c(text: str, value: int) -> None:
    assert evaluated(text, HELD.get) == value


@pytest.mark.parametrize(
    ("text", "names"),
    [
        *((text, ()) for text in ("", "()", "1 +", "(1", "1)", "1 2", "1 ? 2", "1 ? : 2", "* 2")),
        *((text, ()) for text in ("08", "0x", "1a", "16#ff", "1.5", "'5'", '"5"', "5\r")),
        *((text, ()) for text in ("2 ** 3", "1, 2", "a[0]", "--1", "1++1", "one++", "one = 2")),
        *((text, ()) for text in ("one += 2", "one <<= 2", "1 / zero", "1 % 0", "1 << 64")),
        *((text, ()) for text in ("1 << -1", "1 << 63", "9223372036854775808", "text", "sum")),
        *((text, ()) for text in ("9223372036854775807 + 1", "(-9223372036854775807 - 1) / -1")),
        ("-(-9223372036854775807 - 1)", ()),
        ("far * 2 + one + other / far", ("far", "other")),
        ("1 / far", ("far",)),
        ("one || far", 1),
    ],
)
def test_what_shells_do_not_agree_on_has_no_value(text: str, names: tuple[str, ...]) -> None:
    held = {**HELD, "text": "abc", "sum": "1 + 2"}
    del held["none"]
    assert evaluated(text, held.get) == names


def test_expressions_are_bounded() -> None:
    def told(text: str) -> int | tuple[str, ...]:
        return evaluated(text, HELD.get)

    assert told(f"1{' ' * (MAX_LENGTH - 1)}") == 1
    assert told(f"1{' ' * MAX_LENGTH}") == ()
    assert told("(" * 19 + "1" + ")" * 19) == 1
    assert told("(" * 20 + "1" + ")" * 20) == ()
    assert told("- " * 400 + "1") == told("1 ? " * 100 + "1" + " : 1" * 100) == ()
    assert told("0 && 1 << 1 + 1 * " * 40 + "1") == 0
    assert evaluated("one", {"one": " " * MAX_LENGTH + "1"}.get) == ()
    assert evaluated("one", {"one": "9" * 5_000}.get) == ()


@given(st.text(alphabet="0189afx_ $+-*/%<>&^|!~?:()=,#\n", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_has_a_value_that_fits_or_none(text: str) -> None:
    found = evaluated(text, {"a": "1", "f": "x"}.get)
    if isinstance(found, int):
        assert -(2**63) <= found < 2**63
    else:
        assert all(name in text for name in found)


def test_what_an_expression_may_change_is_told() -> None:
    text = "a=1, b += 2 * c <= d != e >= f == g, h<<=1, ++i - --j + k-- - -l, m[n]"
    assert assigned_in(text) == {"a", "b", "h", "i", "j", "k"}


# within a proposal


def read(text: str) -> tuple[list[str], list[tuple[str, ...]], Proposal]:
    proposal = parse_command(text)
    words = [word.text for word in proposal.words]
    return words, [word.unresolved for word in proposal.words], proposal


def test_arithmetic_is_a_word_of_its_own_value() -> None:
    words, unresolved, proposal = read(
        "LOCAL=8\nexport GROUP=2\nSTART=$(( ${INDEX:-1} * LOCAL ))\n"
        'vllm serve m --a $((GROUP * $LOCAL)) --b="$(( $((1+1))\\\n + 1 ))" --c $START p$((-5))q'
    )
    assert words == ["m", "--a", "16", "--b=3", "--c", "8", "p-5q"]
    assert unresolved == [()] * 7
    assert [(f.rule, str(f.location)) for f in proposal.findings] == [
        ("shell-default-taken", "command:3:11")
    ]
    place = proposal.words[2].location
    assert (place.line, place.column, place.text) == (4, 18, "$((GROUP * $LOCAL))")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("$((FAR * 2))", ("FAR",)),
        ("$(( $FAR * ${OTHER} + FAR ))", ("FAR", "OTHER")),
        ("$(( ${UNKNOWN:-2} * FAR ))", ("FAR",)),
        ("$((1 / 0))", ("((1 / 0))",)),
        ("$(( $(nproc) / 2 ))", ("(nproc)",)),
        ("$(( `nproc` / 2 ))", ("(( `nproc` / 2 ))",)),
        ('$(( "$FAR" ))', ('(( "$FAR" ))',)),
        ("$((${A%x}))", ("{A%x}",)),
        ("$((${LIST[@]}))", ("((${LIST[@]}))",)),
        ("$((echo 1) | (cat))", ("((echo 1) | (cat))",)),
        ("$((echo 1); (cat) )", ("((echo 1); (cat) )",)),
        ("$(( ${A ))", ("(( ${A ))",)),
        ("$((" + "1+" * 500 + "1))", ("((" + "1+" * 500 + "1))",)),
        ("$((" * 17 + "1" + "))" * 17, ("((1))",)),
    ],
)
def test_only_the_word_is_open_where_a_value_is_not_known(
    text: str, names: tuple[str, ...]
) -> None:
    words, unresolved, proposal = read(f"LIST=(1 2)\nvllm serve m --x {text} --y 1")
    assert words == ["m", "--x", text, "--y", "1"]
    assert unresolved == [(), (), names, (), ()]
    assert [f.rule for f in proposal.findings if f.rule == "shell-default-taken"] == []


def test_a_variable_that_an_expression_changes_is_open_from_there_on() -> None:
    words, unresolved, _ = read("I=1\nJ=1\nvllm serve $I $((I += 1)) $I $((J)) ${I:-5}")
    assert words == ["1", "$((I += 1))", "$I", "1", "$I"]
    assert unresolved == [(), ("((I += 1))",), ("I",), (), ("I",)]


def test_a_variable_used_in_arithmetic_need_not_be_exported() -> None:
    _, _, proposal = read("PORT=1\nOFF=2\nvllm serve m --port $((OFF ? 8000 : PORT))")
    assert proposal.findings == ()


def test_expressions_in_expressions_are_read_in_time() -> None:
    nested = "$((1+" * 16 + "1" + "))" * 16
    piece = f"$(({'1+' * 430}{nested}))"
    wide = "A=" + "1" * 100_000 + "\nB=$((" + "$A" * 400 + "))\n"
    begin = time.perf_counter()
    read("vllm serve m " + f"--x={piece} " * 200)
    read(wide * 2 + "vllm serve m")
    read("vllm serve m " + "$((" * 20_000 + "))" * 20_000)
    assert time.perf_counter() - begin < 8


def test_an_edit_leaves_what_is_worked_out_as_it_is_written() -> None:
    text = (
        "N=4\nvllm serve m --port=$((N * 2000)) --seed $((N + FAR)) "
        "--tensor-parallel-size $((N + 1)) --max-model-len $(( 2**13 ))"
    )
    edits = [SetFlag("tensor_parallel_size", 4), SetFlag("max_model_len", 4096)]
    edited = apply_edits(parse_command(text), edits, CATALOGUE)
    assert edited.source == text.replace("$((N + 1))", "4").replace("$(( 2**13 ))", "4096")
