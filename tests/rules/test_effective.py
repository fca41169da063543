from __future__ import annotations

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.rules.effective import settings_of
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity

CATALOGUE = CatalogueLibrary().get("0.32.0")


def config_of(text: str) -> ServeConfig:
    config = resolve(parse_command(text), CATALOGUE).config
    assert config is not None
    return config


def changed(dest: str, asked: object, effective: object) -> Finding:
    return Finding(
        rule="some-rule",
        severity=Severity.WARNING,
        message="it cannot be",
        evidence={"dest": dest, "asked": asked, "effective": effective},
    )


def test_what_is_given_has_value_origin_and_place() -> None:
    given = settings_of(config_of("vllm serve m --port 1 --port $P"), ())["given"]
    assert given["port"]["unresolved"] == ["P"]
    assert given["port"]["origin"] == "argv"
    assert given["port"]["location"]["column"] == 30
    assert [place["column"] for place in given["port"]["overridden"]] == [21]


def test_what_is_changed_silently_stands_beside_what_was_asked_for() -> None:
    findings = [
        changed("seed", 1, 0),
        Finding(rule="other", severity=Severity.INFO, message="x", evidence={"effective": 1}),
    ]
    settings = settings_of(config_of("vllm serve m --seed 1"), findings, every=True)
    assert settings["effective"] == [
        {
            "dest": "seed",
            "asked": 1,
            "effective": 0,
            "because": "it cannot be",
            "rule": "some-rule",
        }
    ]
    assert settings["all"]["seed"]["value"] == 1
    assert settings["all"]["seed"]["effective"] == 0


def test_every_setting_is_listed_only_if_asked_for() -> None:
    config = config_of("vllm serve m")
    assert "all" not in settings_of(config, ())
    every = settings_of(config, (), every=True)["all"]
    assert set(every) == set(config.settings)
    assert every["max_logprobs"]["origin"] == "default"


def test_modes_of_compilation_and_graphs_are_derived() -> None:
    derived = settings_of(config_of("vllm serve m --enforce-eager"), ())["derived"]
    assert (derived["compilation_mode"], derived["cudagraph_mode"]) == ("NONE", "NONE")
    assert "cudagraph_mode" not in settings_of(config_of("vllm serve m"), ())["derived"]
