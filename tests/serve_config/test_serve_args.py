from __future__ import annotations

import pytest

from tests.serve_config.reading import only, read, rules


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--enable-auto-tool-choice", "serve-auto-tool-choice"),
        ("--enable-auto-tool-choice --tool-call-parser hermes", None),
        ("--enable-log-outputs", "serve-log-outputs"),
        ("--enable-log-outputs --enable-log-requests", None),
        ("--enable-per-request-metrics --disable-log-stats", "serve-per-request-metrics"),
        ("--sse-keep-alive-interval -1", "serve-sse-keep-alive"),
        ("--sse-keep-alive-interval 0", None),
        ("--chat-template t.jinja", "serve-chat-template-file"),
        ("--chat-template '{{ x }}'", None),
        ("--grpc-port 1", "serve-grpc-port"),
        ("-dpm -dp 4 -dpl 2", None),
        ("-dpm", "serve-multi-port"),
        ("-dpm -dp 4 -dpl 3", "serve-multi-port"),
        ("-dpm -dp 4 -dpl 2 -asc 2", "serve-multi-port"),
        ("-dpm -dp 4 -dpl 2 --port 9255", "serve-multi-port"),
        ("-dpm -dp 4 -dpl 2 -dpr 3", "serve-multi-port"),
        ("-dpm -dp 4 -dpl 2 --ssl-keyfile k", "serve-multi-port"),
        ("-dpm -dp 2 -dpl 2", None),
        ("-dpm -dp 4 -dpl 2 --data-parallel-supervisor-port 8002", None),
        ("-dpm -dp $N -dpl 2", None),
    ],
)
def test_combinations_that_serve_refuses(words: str, rule: str | None) -> None:
    assert rules(read(f"vllm serve m {words}")) == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--grpc-port 50051", False),
        ("--grpc-port 0", False),
        ("--grpc-port 8000", True),
        ("--grpc-port 8000 --uds /run/v", False),
        ("--grpc-port 70000", True),
        ("--grpc-port 50051 --grpc", True),
        ("--grpc-port 50051 --headless", True),
    ],
)
def test_the_grpc_port_with_the_rust_front_end(words: str, refused: bool) -> None:
    found = rules(read(f"VLLM_USE_RUST_FRONTEND=1 vllm serve m {words}"))
    assert ("serve-grpc-port" in found) is refused


@pytest.mark.parametrize(
    ("value", "refused"),
    [('{"low": "short"}', False), ('{"tiny": "x"}', True), ('{"low": 1}', True), ("[]", True)],
)
def test_the_effort_map_of_0_33(value: str, refused: bool) -> None:
    found = rules(read(f"vllm serve m --reasoning-effort-map '{value}'", "0.33.0"))
    assert ("serve-reasoning-effort-map" in found) is refused


@pytest.mark.parametrize(
    ("words", "rule", "places"),
    [
        ("--enable-per-request-metrics --disable-log-stats", "serve-per-request-metrics", (2, 1)),
        ("--grpc-port 8000 --port 8000", "serve-grpc-port", (2, 4)),
        ("--grpc-port 50051 --headless", "serve-grpc-port", (2, 3)),
        ("-dpm -dp 4 -dpl 2 -asc 2", "serve-multi-port", (7, 1)),
        ("-dpm -dp 4 -dpl 2 --headless", "serve-multi-port", (6, 1)),
        ("--seed 1 --seed 2", "cli-repeated-flag", (2, 4)),
        ("m2", "cli-extra-argument", (1, 0)),
    ],
)
def test_the_second_place_of_a_conflict_is_told(
    words: str, rule: str, places: tuple[int, int]
) -> None:
    found = only(read(f"VLLM_USE_RUST_FRONTEND=1 vllm serve m {words}"), rule)
    assert found.location is not None
    assert (found.location.argv_index, found.related[0].argv_index) == places


def test_an_option_and_its_value_in_one_word_are_told_apart() -> None:
    found = only(read("vllm serve m '--tensor-parallel-size 1'"), "cli-extra-argument")
    assert "give the option and its value as two" in found.message
