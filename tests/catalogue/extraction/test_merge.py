"""Merging the captures of two platforms."""

from __future__ import annotations

from typing import Any

import pytest

from app.catalogue.extraction.merge import merge

Fact = dict[str, Any]


def capture(platform: str, **members: Any) -> Fact:
    facts: Fact = {
        "vllm_version": "0.99.0",
        "captured_on_platform": platform,
        "flags": [],
        "config_classes": {},
        "registries": {"attention_backend_matrix": {}},
        "model_abilities": {"not_inspected": []},
        "not_captured": [],
    }
    return {**facts, **members}


def test_differences_of_flags_and_fields_become_overrides() -> None:
    cuda = capture(
        "cuda",
        flags=[{"dest": "a", "choices": ["x"]}, {"dest": "b", "default": 1}],
        config_classes={"C": {"fields": {"f": {"default": "cuda"}, "g": {"default": 0}}}},
    )
    cpu = capture(
        "cpu",
        flags=[{"dest": "a"}, {"dest": "b", "default": 1}, {"dest": "c", "default": 2}],
        config_classes={"C": {"fields": {"f": {"default": "cpu"}, "g": {"default": 0}}}},
    )
    merged = merge(cuda, cpu)
    assert merged["flags"] == cuda["flags"]
    assert merged["platform_overrides"] == {
        "cpu": {
            "flags": {"a": {"$without": ["choices"]}, "c": {"dest": "c", "default": 2}},
            "fields": {"C.f": {"default": "cpu"}},
        }
    }


def test_like_captures_give_an_empty_override_that_says_they_were_compared() -> None:
    assert merge(capture("cuda"), capture("cpu"))["platform_overrides"] == {"cpu": {}}


def test_the_first_capture_is_left_as_it_was() -> None:
    cuda = capture("cuda", registries={"attention_backend_matrix": {"X": None}})
    merge(cuda, capture("cpu", registries={"attention_backend_matrix": {"X": {"a": 1}}}))
    assert cuda["registries"] == {"attention_backend_matrix": {"X": None}}


def test_what_only_the_second_could_read_is_taken_and_no_longer_noted() -> None:
    cuda = capture(
        "cuda",
        registries={"attention_backend_matrix": {"X": None, "Y": {"sink": True}, "Z": None}},
        model_abilities={"is_hybrid": ["A"], "not_inspected": ["B", "C"]},
        not_captured=[
            "attention backend X: ImportError",
            "attention backend Z: ImportError",
            "model class B: ImportError",
            "model class C: ImportError",
            "converter of sheep: parse_sheep",
        ],
    )
    cpu = capture(
        "cpu",
        registries={
            "attention_backend_matrix": {"X": {"sink": False}, "Y": {"sink": False}, "Z": None}
        },
        model_abilities={
            "is_hybrid": ["B", "D"],
            "supports_pp": ["A", "B"],
            "not_inspected": ["C"],
        },
        not_captured=["model class C: OSError"],
    )
    merged = merge(cuda, cpu)
    matrix = merged["registries"]["attention_backend_matrix"]
    assert matrix == {"X": {"sink": False}, "Y": {"sink": True}, "Z": None}
    assert merged["model_abilities"] == {
        "is_hybrid": ["A", "B"],
        "not_inspected": ["C"],
        "supports_pp": ["B"],
    }
    assert merged["not_captured"] == [
        "attention backend Z: ImportError",
        "model class C: ImportError",
        "converter of sheep: parse_sheep",
    ]


def test_captures_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different versions: 0\.99\.0 and 1\.0"):
        merge(capture("cuda"), capture("cpu", vllm_version="1.0"))
    with pytest.raises(ValueError, match="both captures are of platform cuda"):
        merge(capture("cuda"), capture("cuda"))
