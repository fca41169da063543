"""Values, annotations, classes and files: how Python becomes a fact."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, SkipValidation, field_validator, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from app.catalogue.extraction.annotations import dataclasses_in, type_fact
from app.catalogue.extraction.config_classes import class_fact
from app.catalogue.extraction.installed import describe
from app.catalogue.extraction.model_abilities import answers
from app.catalogue.extraction.values import as_fact
from app.catalogue.extraction.writing import dump


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


class Level(enum.IntEnum):
    O0 = 0
    O1 = 1


class ByPath(enum.Enum):
    A = "package.module.Class"


@dataclasses.dataclass
class Inner:
    x: int = 0


@pydantic_dataclass(config={"extra": "forbid"})
class Outer:
    required: str
    inner: Inner = Field(default_factory=Inner)
    names: list[str] = dataclasses.field(default_factory=list)
    share: float = Field(default=0.9, gt=0, le=1)
    level: Level = Level.O1
    hidden: int = dataclasses.field(init=False, default=0)
    extra_size: dataclasses.InitVar[int] = 3

    def __post_init__(self, extra_size: int) -> None:
        self.hidden = extra_size

    @field_validator("names", mode="before")
    @classmethod
    def _to_list(cls, value: Any) -> Any:
        return value

    @model_validator(mode="after")
    def _together(self) -> Outer:
        return self


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (argparse.SUPPRESS, {"$suppress": True}),
        (Inner(), {"$dataclass": "Inner"}),
        (Mode.FAST, {"$enum": "Mode", "name": "FAST"}),
        (Level.O1, 1),
        (True, True),
        (Inner, {"$class": f"{__name__}.Inner"}),
        ({"b", "a"}, ["a", "b"]),
        ({1: (None, 1.5)}, {"1": [None, 1.5]}),
        (object(), {"$object": "object"}),
        (str(Path.home() / ".cache"), "~/.cache"),
    ],
)
def test_a_value_becomes_json(value: object, expected: object) -> None:
    found = as_fact(value)
    assert found == expected
    assert json.loads(json.dumps(found)) == expected


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int | None, {"t": "union", "of": [{"t": "int"}, {"t": "none"}]}),
        (typing.Optional[str], {"t": "union", "of": [{"t": "str"}, {"t": "none"}]}),  # noqa: UP045 - the old spelling is what is tested
        (Literal["a", "b"], {"t": "literal", "values": ["a", "b"]}),
        (dict[str, Any], {"t": "dict", "of": [{"t": "str"}, {"t": "any"}]}),
        (list, {"t": "list"}),
        (tuple[int, ...], {"t": "tuple", "of": [{"t": "int"}]}),
        (type[int], {"t": "type", "of": [{"t": "int"}]}),
        (Callable[[str], int], {"t": "callable"}),
        (Inner, {"t": "dataclass", "name": "Inner"}),
        (Path, {"t": "class", "name": f"{Path.__module__}.Path"}),
        ("np.ndarray", {"t": "forward", "name": "np.ndarray"}),
        (
            Level,
            {"t": "enum", "name": "Level", "members": ["O0", "O1"], "values": [0, 1]},
        ),
        (ByPath, {"t": "enum", "name": "ByPath", "members": ["A"]}),
        (
            SkipValidation[int],
            {"t": "int", "annotated": [{"$meta": "SkipValidation"}]},
        ),
        (Annotated[int, Field(gt=0)], {"t": "int"}),
    ],
)
def test_an_annotation_becomes_a_tree(hint: Any, expected: dict[str, Any]) -> None:
    assert type_fact(hint) == expected


def test_dataclasses_are_found_at_any_depth() -> None:
    assert dataclasses_in(dict[str, list[Inner] | None]) == [Inner]
    assert dataclasses_in(int) == []


def test_a_class_keeps_constraints_validators_and_defaults() -> None:
    fact = class_fact(Outer, typing.get_type_hints(Outer, include_extras=True))
    assert fact["pydantic"] is True
    assert fact["extra"] == "forbid"
    assert fact["post_init"] is True
    assert fact["model_validators"] == [["_together", "after"]]
    assert fact["initvars"] == {"extra_size": {"t": "initvar", "of": {"t": "int"}}}
    fields = fact["fields"]
    assert fields["required"] == {"type": {"t": "str"}, "required": True}
    assert fields["share"]["constraints"] == {"gt": 0, "le": 1}
    assert fields["share"]["default"] == 0.9
    assert fields["inner"]["default"] == {"$dataclass": "Inner"}
    assert fields["inner"]["default_from_factory"] is True
    assert fields["names"]["validators"] == [["_to_list", "before"]]
    assert fields["level"]["default"] == 1
    assert fields["hidden"]["init"] is False


def test_a_plain_class_says_only_what_it_has() -> None:
    fact = class_fact(Inner, {"x": int})
    assert set(fact) == {"module", "fields"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), "ValueError"),
        (ImportError("cannot import x (/opt/a/b.py)"), "ImportError: cannot import x"),
        (OSError("no /opt/a/lib.so here"), "OSError: no here"),
        (RuntimeError("First. Second.\nThird"), "RuntimeError: First"),
    ],
)
def test_an_error_is_described_without_paths(error: Exception, expected: str) -> None:
    assert describe(error) == expected


def test_a_file_has_a_line_for_each_fact_and_sorted_sections() -> None:
    text = dump({"vllm_version": "1", "flags": [{"a": 1}, {"b": [1, 2]}], "env_vars": {}})
    assert text == (
        '{\n"env_vars":{},\n"flags":[\n{"a":1},\n{"b":[1,2]}\n],\n"vllm_version":"1"\n}\n'
    )


def test_any_catalogue_survives_being_written() -> None:
    facts = {
        "config_classes": {"C": {"line": 1, "fields": {"f": {"default": "ü"}}}},
        "registries": {"attention_backend_matrix": {"X": None}, "names": ["a"]},
        "replay": {"messages": {"a": "b"}},
        "runner": {"unsupported": {"v2": [{"label": "x"}]}},
        "unknown_section": {"x": [1]},
    }
    assert json.loads(dump(facts)) == facts


def test_inspection_goes_on_after_a_process_that_ended() -> None:
    def inspect_one(architecture: str) -> dict[str, bool]:
        if architecture == "exits":
            raise SystemExit("gave up")
        return {"able": architecture == "able"}

    def found() -> Iterator[tuple[str, object]]:
        yield from answers(["able", "exits", "unable"], inspect_one)

    assert dict(found()) == {
        "able": {"able": True},
        "exits": "SystemExit: gave up",
        "unable": {"able": False},
    }
