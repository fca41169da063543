from __future__ import annotations

import time

import pytest

from app.errors import MalformedDocument, PayloadTooLarge
from app.proposal.config_yaml import MAX_DEPTH, MAX_TEXT, parse_config_yaml, read_config
from app.proposal.proposal import Form


def values(text: str) -> dict[object, object]:
    return {entry.key: entry.value for entry in read_config(text, "c.yaml").entries}


def test_values_are_those_of_yaml_1_1_as_pyyaml_reads_it() -> None:
    text = "a: on\nb: 1e3\nc: 0x10\nd: 1_000\ne: no\nf: '1'\ng: ~\nh: 1:30\ni: 010\n"
    assert values(text) == {
        "a": True,
        "b": "1e3",
        "c": 16,
        "d": 1000,
        "e": False,
        "f": "1",
        "g": None,
        "h": 90,
        "i": 8,
    }


def test_every_key_and_value_has_its_place() -> None:
    document = read_config("# c\nmodel: m\ncc:\n  mode: 3\n  list: [1, {x: y}]\n", "c.yaml")
    model, cc = document.entries
    assert (str(model.key_location), str(model.location)) == ("c.yaml:2:1", "c.yaml:2:8")
    assert document.locate(cc, ("mode",)).text == "3"
    assert str(document.locate(cc, ("list", 1, "x"))) == "c.yaml:5:17"
    assert document.locate(cc, ("absent", "x")).line == 4


def test_the_last_of_two_equal_keys_wins_and_the_first_is_remembered() -> None:
    (entry,) = read_config("port: 1\nport: 2\n", "c.yaml").entries
    assert entry.value == 2
    assert [str(place) for place in entry.overridden] == ["c.yaml:1:1"]
    nested = read_config("a:\n  x: 1\n  x: 2\n", "c.yaml")
    assert [str(place) for place in nested.repeated] == ["c.yaml:3:3"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", "empty"), ("# only\n", "empty"), ("- a\n", "list"), ("a", "scalar"), ("{}", "mapping")],
)
def test_the_kind_of_the_top_level_is_told(text: str, kind: str) -> None:
    assert read_config(text, "c.yaml").kind == kind


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: [1\n", 2, 1),
        ("a: b: c", 1, 5),
        ("a: 1\n\tb: 2\n", 2, 1),
        ("x: !!python/object:os.system 1", 1, 4),
        ("&a [*a]", 1, 1),
        ("a: 1\n---\nb: 2\n", 2, 1),
        ("? [a]\n: 1", 1, 3),
        ("a: \x07", None, None),
        ("a: \ud800", None, None),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_place(
    text: str, line: int | None, column: int | None
) -> None:
    with pytest.raises(MalformedDocument) as caught:
        read_config(text, "c.yaml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (line, column)


def _bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(lines)


def _merge_bomb() -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 60)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        _bomb(),
        _merge_bomb(),
        "[" * 100_000,
        "a: " + "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2),
        "\n".join(f"{' ' * i}a:" for i in range(500)),
        "\n".join(f"k{i}: &k{i} [*k{i - 1}]" if i else "k0: &k0 [1]" for i in range(5000)),
        "a: [" + "1," * 200_000 + "]",
    ],
    ids=["aliases", "merges", "open", "flow", "block", "chain", "long"],
)
def test_documents_that_blow_up_are_refused_quickly(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(MalformedDocument):
        read_config(text, "c.yaml")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "number",
    ["9" * 4301, "0x" + "f" * 5000, "[{x: 0b" + "1" * 20_000 + "}]", "1" + ":59" * 300_000],
    ids=["decimal", "hexadecimal", "nested-binary", "sexagesimal"],
)
def test_an_integer_that_python_cannot_write_is_refused_at_its_place(number: str) -> None:
    began = time.monotonic()
    with pytest.raises(MalformedDocument) as refused:
        read_config(f"model: m\nseed: {number}\n", "c.yaml")
    assert time.monotonic() - began < 5
    (problem,) = refused.value.problems
    assert "more than 4300 digits" in problem.detail
    assert (problem.line, problem.column) == (2, 7 + number.find("0b") if "0b" in number else 7)


def test_long_integers_that_python_writes_are_read() -> None:
    text = f"a: {'9' * 4300}\nb: 0x{'f' * 3000}\nc: 1{'_' * 2000}0\n"
    assert values(text) == {"a": 10**4300 - 1, "b": 16**3000 - 1, "c": 10}


def test_the_size_is_bounded() -> None:
    with pytest.raises(PayloadTooLarge):
        read_config("a" * (MAX_TEXT + 1), "c.yaml")


def test_a_file_alone_is_a_proposal() -> None:
    proposal = parse_config_yaml("model: m\n", source="serve.yaml")
    assert proposal.form is Form.CONFIG_YAML
    assert proposal.yaml is not None
    assert (proposal.yaml.name, proposal.yaml.text) == ("serve.yaml", "model: m\n")
