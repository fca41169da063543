"""The typed reader."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.catalogue import Catalogue, Flag


def catalogue(**members: Any) -> Catalogue:
    facts: dict[str, Any] = {
        "vllm_version": "0.99.0",
        "parser": {},
        "flags": [],
        "config_classes": {},
        "env_vars": {},
        "registries": {},
    }
    return msgspec.convert({**facts, **members}, Catalogue)


def raw_flag(dest: str, *options: str, **members: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "dest": dest,
        "options": list(options),
        "group": "g",
        "action": "StoreAction",
    }
    return {**facts, **members}


def flag(dest: str, *options: str, **members: Any) -> Flag:
    return msgspec.convert(raw_flag(dest, *options, **members), Flag)


def test_a_flag_is_found_under_every_spelling() -> None:
    switch = raw_flag(
        "eager",
        "--enable-eager",
        "--disable-eager",
        negative_options=["--disable-eager", "--no-enable-eager"],
        hidden_options=["--no-enable-eager"],
    )
    found = catalogue(flags=[switch])
    assert set(found.by_option) == {"--enable-eager", "--disable-eager", "--no-enable-eager"}
    assert found.has_flag("eager")
    assert not found.has_flag("enable_eager")


@pytest.mark.parametrize(
    ("options", "negative", "name"),
    [
        (("-tp", "--tensor-parallel-size"), (), "--tensor-parallel-size"),
        (("--no-x", "--x"), ("--no-x",), "--x"),
        (("-q",), (), "-q"),
        ((), (), "model_tag"),
    ],
)
def test_a_flag_is_called_by_its_first_long_positive_option(
    options: tuple[str, ...], negative: tuple[str, ...], name: str
) -> None:
    assert flag("model_tag", *options, negative_options=list(negative)).name == name


def test_nested_converters_are_typed() -> None:
    inner = {"conv": "dataclass_json", "cls": "PoolerConfig", "expands_human_numbers": True}
    found = flag("x", "--x", conv="optional", none_tokens=["", "None"], of=inner).converter
    assert (found.name, found.none_tokens) == ("optional", ("", "None"))
    assert found.of is not None
    assert (found.of.name, found.of.cls, found.of.expands_human_numbers) == (
        "dataclass_json",
        "PoolerConfig",
        True,
    )


def test_an_engine_message_is_filled_where_values_are_given() -> None:
    found = catalogue(
        replay={"messages": {"slots": "max_num_seqs ({max_num_seqs}) is below {tp_size}, {{x}}"}},
        runner={"messages": {"v2_unsupported": "does not support: {unsupported}"}},
    )
    assert found.engine_message("slots", max_num_seqs=2) == (
        "max_num_seqs (2) is below {tp_size}, {x}"
    )
    assert found.engine_message("v2_unsupported", unsupported="a, b") == "does not support: a, b"


def test_a_rule_that_the_version_lacks_has_no_message() -> None:
    assert catalogue().engine_message("needs_v2_runner") is None


def test_an_ability_is_unknown_unless_the_class_was_inspected() -> None:
    found = catalogue(
        registries={"model_archs": ["A", "B", "C"]},
        model_abilities={"is_hybrid": ["A"], "not_inspected": ["C"]},
    )
    assert found.has_ability("A", "is_hybrid") is True
    assert found.has_ability("B", "is_hybrid") is False
    assert found.has_ability("C", "is_hybrid") is None
    assert found.has_ability("Unregistered", "is_hybrid") is None
    assert found.has_ability("A", "can_fly") is None


def test_another_platform_has_its_own_choices_flags_and_defaults() -> None:
    found = catalogue(
        flags=[raw_flag("device", "--device", choices=["cuda"]), raw_flag("same", "--same")],
        config_classes={
            "C": {"module": "m", "fields": {"f": {"type": {"t": "str"}, "default": "a"}}}
        },
        captured_on_platform="cuda",
        platform_overrides={
            "cpu": {
                "flags": {"device": {"$without": ["choices"]}, "new": raw_flag("new", "--new")},
                "fields": {"C.f": {"default": "b"}},
            }
        },
    )
    cpu = found.on_platform("cpu")
    assert cpu.by_dest["device"].choices is None
    assert found.by_dest["device"].choices == ("cuda",)
    assert [f.dest for f in cpu.flags] == ["device", "same", "new"]
    assert cpu.config_classes["C"].fields["f"].default == "b"
    assert cpu.captured_on_platform == "cpu"
    assert found.on_platform("rocm") is found
