from __future__ import annotations

from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.errors import MalformedDocument, PayloadTooLarge
from app.proposal.edit import apply_edits
from app.proposal.proposal import Entrypoint, Form
from app.proposal.python_source import MAX_TEXT, looks_like_python, parse_python
from app.rules.evaluate import validate
from app.serve_config.serve_config import Unresolved
from app.verdict.fix import Edit, RemoveFlag, SetEnvironment, SetFlag, UnsetEnvironment
from app.verdict.verdict import Outcome

CATALOGUE = CatalogueLibrary().get("0.32.0")


@pytest.mark.parametrize(
    ("text", "kwargs"),
    [
        ("LLM('m')", {"model": "m"}),
        ("LLM(model='m', dtype='auto')", {"model": "m", "dtype": "auto"}),
        ("vllm.LLM('m', seed=-1)", {"model": "m", "seed": -1}),
        ("e = AsyncEngineArgs(model='m', a=[1, 2], b=(3,))", {"model": "m", "a": [1, 2], "b": [3]}),
        ("M = 'm'\nLLM(M, x=None, y=True)", {"model": "m", "x": None, "y": True}),
        ("LLM('m', c={'a': {'b': 1.5}})", {"model": "m", "c": {"a": {"b": 1.5}}}),
        ("LLM('m', c=dict(a=1))", {"model": "m", "c": {"a": 1}}),
        ("LLM('m', **{'seed': 1})", {"model": "m", "seed": 1}),
        ("K = {'seed': 1}\nLLM('m', **K)", {"model": "m", "seed": 1}),
        ("AsyncLLM.from_engine_args(AsyncEngineArgs('m'))", {"model": "m"}),
    ],
)
def test_literals_are_read(text: str, kwargs: dict[str, Any]) -> None:
    proposal = parse_python(text)
    assert proposal.form is Form.PYTHON
    assert proposal.entrypoint is Entrypoint.ENGINE_ARGS
    assert proposal.kwargs == kwargs
    assert proposal.unseen == ()


@pytest.mark.parametrize("value", ["f()", "x + 1", "os.environ['A']", "f'{x}'", "M", "[g()]"])
def test_what_is_no_literal_is_not_known(value: str) -> None:
    proposal = parse_python(f"M = 'a'\nM = 'b'\nLLM('m', dtype={value})")
    found = (proposal.kwargs or {})["dtype"]
    assert isinstance(found, Unresolved)
    assert found.variables == (found.text,)


def test_places_are_those_of_the_source_even_behind_wide_characters() -> None:
    proposal = parse_python("LLM(model='é𐀀', seed=1,\n    dtype='auto')", source="run.py")
    places = proposal.places
    assert [(p.line, p.column, p.end_column) for p in places.values()] == [
        (1, 5, 15),
        (1, 17, 23),
        (2, 5, 17),
    ]
    verdict = validate(parse_python("LLM('m',\n  seed='x')", source="run.py"), CATALOGUE)
    assert [str(f.location) for f in verdict.findings if f.severity == "error"] == ["run.py:2:3"]


def test_further_arguments_that_are_not_seen_leave_the_verdict_open() -> None:
    proposal = parse_python("def go(kwargs):\n    return LLM('m', **kwargs)\n")
    assert proposal.unseen == ("kwargs",)
    assert validate(proposal, CATALOGUE).outcome is Outcome.UNDETERMINED


def test_a_value_that_is_not_known_leaves_open_what_hangs_on_it() -> None:
    text = "LLM('m', return_sampling_mask=True, logprobs_mode=MODE)"
    assert validate(parse_python(text), CATALOGUE).outcome is Outcome.UNDETERMINED
    inside = "LLM('m', speculative_config={'method': METHOD, 'num_speculative_tokens': 2})"
    assert validate(parse_python(inside), CATALOGUE).outcome is not Outcome.REJECTED


def test_the_environment_is_what_the_script_sets() -> None:
    proposal = parse_python(
        "import os\nos.environ['A'] = '1'\nos.environ['B'] = f()\nLLM('m')", source="run.py"
    )
    found = proposal.environment
    assert (found["A"].value, str(found["A"].location)) == ("1", "run.py:2:1")
    assert found["B"].unresolved == ("f()",)


def test_a_lone_carriage_return_ends_a_line() -> None:
    proposal = parse_python("import os\rx = 1\nos.environ['A'] = '1'\nLLM('m')", source="run.py")
    assert str(proposal.environment["A"].location) == "run.py:3:1"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("LLM('m'", "python-syntax"),
        ("x = 1", "no-call"),
        ("LLM('a')\nLLM('b')", "several-calls"),
        ("(" * 200 + "LLM('m')", "nested-too-deeply"),
        ("LLM('m')\0", "python-syntax"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, code: str) -> None:
    with pytest.raises(MalformedDocument) as caught:
        parse_python(text)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_source_is_bounded() -> None:
    with pytest.raises(PayloadTooLarge):
        parse_python("#" * (MAX_TEXT + 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from vllm import LLM\nLLM('m')", True),
        ("llm = LLM(model='m')", True),
        ("vllm.LLM('m')", True),
        ("vllm serve m --x 'LLM(a)'", False),
        ("echo hi", False),
    ],
)
def test_python_is_told_from_shell_text(text: str, expected: bool) -> None:
    assert looks_like_python(text) is expected


@pytest.mark.parametrize(
    ("text", "edit", "expected"),
    [
        ("LLM('m')", SetFlag("seed", 1), "LLM('m', seed=1)"),
        ("LLM()", SetFlag("seed", 1), "LLM(seed=1)"),
        ("LLM('m', seed=2)  # c", SetFlag("seed", 1), "LLM('m', seed=1)  # c"),
        ("LLM('m', seed=2)", SetFlag("model", "n"), "LLM('n', seed=2)"),
        (
            "LLM(\n    'm',\n    seed=2,  # s\n)",
            SetFlag("dtype", "auto"),
            "LLM(\n    'm',\n    seed=2,\n    dtype='auto',  # s\n)",
        ),
        ("LLM(\n    'm',\n    seed=2,\n)", RemoveFlag("seed"), "LLM(\n    'm',\n)"),
        ("LLM('m', seed=2)", RemoveFlag("seed"), "LLM('m')"),
        ("LLM('m', seed=2, dtype='auto')", RemoveFlag("seed"), "LLM('m', dtype='auto')"),
        ("LLM('m', c={'a': 1})", SetFlag("c.b", 2), "LLM('m', c={'a': 1, 'b': 2})"),
        ("LLM('m', c={'a': f()})", SetFlag("c.b", 2), "LLM('m', c={'a': f()})"),
        ("K = {'seed': 1}\nLLM('m', **K)", SetFlag("seed", 2), "K = {'seed': 1}\nLLM('m', **K)"),
        (
            "os.environ['A'] = '1'\nLLM('m')",
            SetEnvironment("A", "2"),
            "os.environ['A'] = \"2\"\nLLM('m')",
        ),
        ("os.environ['A'] = '1'\nLLM('m')", UnsetEnvironment("A"), "LLM('m')"),
        ("LLM('m')", SetEnvironment("A", "2"), "LLM('m')"),
    ],
)
def test_edits_change_the_source_only_where_they_must(text: str, edit: Edit, expected: str) -> None:
    assert apply_edits(parse_python(text), [edit], CATALOGUE).source == expected
