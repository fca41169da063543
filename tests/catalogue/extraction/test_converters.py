"""Naming what argparse applies to one word."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from app.catalogue.extraction.converters import converter_fact, is_known


@dataclass
class PoolerConfig:
    pass


def optional_type(return_type: Callable[[str], Any]) -> Callable[[str], Any]:
    def _optional_type(val: str) -> Any:
        return None if val in ("", "None") else return_type(val)

    return _optional_type


def parse_type(return_type: Callable[[str], Any]) -> Callable[[str], Any]:
    def _parse_type(val: str) -> Any:
        return return_type(val)

    return _parse_type


def _expand_json_human_readable_numbers(val: str) -> str:
    return val


def dataclass_parser(expands: bool) -> Callable[[str], Any]:
    if expands:

        def parse_dataclass(val: str, cls: type = PoolerConfig) -> Any:
            return cls(**json.loads(_expand_json_human_readable_numbers(val)))
    else:

        def parse_dataclass(val: str, cls: type = PoolerConfig) -> Any:
            return cls(**json.loads(val))

    return parse_dataclass


def human_readable_int(value: str) -> int:
    return int(value)


def parse_name(value: str) -> str:
    return "" if value.lower() == "none" else value


def parse_sheep(value: str) -> str:
    return value * 2


@pytest.mark.parametrize(
    ("convert", "expected"),
    [
        (None, {"conv": "str"}),
        (int, {"conv": "int"}),
        (json.loads, {"conv": "json"}),
        (human_readable_int, {"conv": "human_readable_int"}),
        (parse_type(json.loads), {"conv": "valueerror_to_argerror", "of": {"conv": "json"}}),
        (
            optional_type(int),
            {"conv": "optional", "none_tokens": ["", "None"], "of": {"conv": "int"}},
        ),
        (
            dataclass_parser(expands=True),
            {"conv": "dataclass_json", "cls": "PoolerConfig", "expands_human_numbers": True},
        ),
        (
            dataclass_parser(expands=False),
            {"conv": "dataclass_json", "cls": "PoolerConfig", "expands_human_numbers": False},
        ),
        (lambda s: s.lower().replace("-", "_"), {"conv": "lower_and_dash_to_underscore"}),
        (
            lambda s: [int(x) if x.isdigit() else x for x in s.split(",")],
            {"conv": "comma_list_int_or_str"},
        ),
        (parse_name, {"conv": "none_to_empty"}),
        (parse_sheep, {"conv": "unknown", "repr": "parse_sheep"}),
    ],
)
def test_a_converter_is_named_by_its_shape_or_its_answers(
    convert: Callable[[str], Any] | None, expected: dict[str, Any]
) -> None:
    assert converter_fact(convert) == expected


def test_a_conversion_is_known_only_if_every_layer_is() -> None:
    assert is_known(converter_fact(optional_type(int)))
    assert not is_known(converter_fact(optional_type(parse_sheep)))
