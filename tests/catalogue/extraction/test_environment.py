"""How each form of variable in envs.py is told apart."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from app.catalogue.extraction.environment import environment_facts

HELPERS = """
def maybe_convert_bool(value):
    return None if value is None else bool(int(value))

def get_vllm_port():
    if "X" not in os.environ:
        return None
    try:
        return int(os.getenv("X", "0"))
    except ValueError as error:
        raise ValueError("not a port") from error

def disable_cache():
    return bool(int(os.getenv("X", "0")))

def warn_of_old_name():
    if "X" in os.environ:
        logger.warning("old")

def mixed():
    if os.getenv("X"):
        return int(os.environ["X"])
    return float(os.environ["X"])

"""


def fact(expression: str) -> dict[str, Any]:
    module = f"{HELPERS}environment_variables: dict = {{'X': {expression}}}"
    return environment_facts(ast.parse(module))["X"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("lambda: os.getenv('X', 'a')", {"parse": "str", "default": "a"}),
        ("lambda: os.environ.get('X', None)", {"parse": "str"}),
        ("lambda: os.getenv('X', 'A').lower()", {"parse": "str", "default": "A", "lower": True}),
        ("lambda: os.getenv('X', 'a').upper()", {"parse": "str", "default": "a", "upper": True}),
        ("lambda: int(os.getenv('X', '8'))", {"parse": "int", "default": "8"}),
        ("lambda: int(os.environ['X']) if 'X' in os.environ else None", {"parse": "int"}),
        ("lambda: float(os.getenv('X', '1.5'))", {"parse": "float", "default": "1.5"}),
        ("lambda: bool(int(os.getenv('X', '1')))", {"parse": "int_bool", "default": "1"}),
        ("lambda: maybe_convert_bool(os.getenv('X', None))", {"parse": "int_bool"}),
        ("disable_cache", {"parse": "int_bool", "default": "0"}),
        ("lambda: disable_cache()", {"parse": "int_bool", "default": "0"}),
        ("get_vllm_port", {"parse": "port_int"}),
        ("warn_of_old_name", {"parse": "str"}),
        ("mixed", {"parse": "unknown"}),
        ("undefined_helper", {"parse": "unknown"}),
        ("lambda: os.getenv('X', '0') == '1'", {"parse": "is_1", "default": "0"}),
        ("lambda: os.getenv('X', '0') != '0'", {"parse": "not_0", "default": "0"}),
        (
            "lambda: os.getenv('X', 'False').lower() == 'true'",
            {"parse": "is_true", "default": "False"},
        ),
        (
            "lambda: os.getenv('X', '').strip().lower() in ('1', 'true')",
            {"parse": "true_or_1", "default": ""},
        ),
        (
            "lambda: [] if 'X' not in os.environ else os.environ['X'].split(',')",
            {"parse": "comma_list"},
        ),
        (
            "env_with_choices('X', None, ['a', 'b'])",
            {"parse": "choice", "choices": ["a", "b"]},
        ),
        (
            "env_set_with_choices('X', default=['a'], choices=['a'], case_sensitive=False)",
            {"parse": "choice_set", "choices": ["a"], "default": ["a"], "case_sensitive": False},
        ),
        (
            "get_env_or_set_default('X', make_name)",
            {"parse": "str", "default": {"$generated": True}},
        ),
        (
            "lambda: bool(int(os.getenv('X', '0')) or int(os.getenv('Y', '0')))",
            {"parse": "int_bool", "default": "0", "also_reads": "Y"},
        ),
    ],
)
def test_a_variable_is_described_by_how_it_parses(
    expression: str, expected: dict[str, Any]
) -> None:
    found = fact(expression)
    strict = found.pop("strict")
    assert found == expected
    refuses_text = {"int", "float", "int_bool", "port_int", "choice", "choice_set"}
    assert strict is (expected["parse"] in refuses_text)
