from __future__ import annotations

import pytest

from app.verdict.fix import SetEnvironment, UnsetEnvironment
from tests.serve_config.reading import VERSIONS, only, read, read_members, rules


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("VLLM_USE_V2_MODEL_RUNNER", "zz", "env-invalid-value"),
        ("VLLM_USE_V2_MODEL_RUNNER", "", "env-invalid-value"),
        ("VLLM_USE_V2_MODEL_RUNNER", "true", "env-invalid-value"),
        ("VLLM_USE_V2_MODEL_RUNNER", "1", None),
        ("VLLM_USE_V2_MODEL_RUNNER", " 1 ", None),
        ("VLLM_PORT", "tcp://10.0.0.1:80", "env-invalid-value"),
        ("VLLM_PORT", "8001", None),
        ("VLLM_WORKER_MULTIPROC_METHOD", "thread", "env-invalid-value"),
        ("VLLM_WORKER_MULTIPROC_METHOD", "spawn", None),
        ("VLLM_LOG_STATS_INTERVAL", "x", "env-invalid-value"),
        ("VLLM_LOG_STATS_INTERVAL", "1e1", None),
        ("VLLM_HUMMING_ONLINE_QUANT_CONFIG", "{", "env-invalid-value"),
        ("VLLM_HUMMING_ONLINE_QUANT_CONFIG", "/etc/q.json", None),
        ("VLLM_USE_STANDALONE_COMPILE", "yes", "env-ignored-value"),
        ("VLLM_USE_STANDALONE_COMPILE", "0", None),
        ("VLLM_USE_V2_MODEL_RUNER", "1", "env-unknown"),
        ("PATH", "zz", None),
    ],
)
def test_variables_are_judged_by_how_vllm_reads_them(
    version: str, name: str, value: str, rule: str | None
) -> None:
    resolution = read_members(version, args=["m"], env={name: value})
    assert rules(resolution) == ({rule} if rule else set())


def test_a_finding_points_at_the_assignment_and_offers_the_digit() -> None:
    found = only(read("export VLLM_USE_V2_MODEL_RUNNER=true\nvllm serve m"), "env-invalid-value")
    assert str(found.location) == "command:1:8"
    assert found.engine_message == "invalid literal for int() with base 10: 'true'"
    assert found.fix is not None
    assert found.fix.edits == (SetEnvironment("VLLM_USE_V2_MODEL_RUNNER", "1"),)


def test_an_unknown_variable_suggests_the_nearest_name() -> None:
    found = only(read("VLLM_USE_V2_MODEL_RUNER=0 vllm serve m"), "env-unknown")
    assert found.fix is not None
    assert found.fix.edits == (
        UnsetEnvironment("VLLM_USE_V2_MODEL_RUNER"),
        SetEnvironment("VLLM_USE_V2_MODEL_RUNNER", "0"),
    )


def test_an_unknown_variable_is_refused_if_asked_for() -> None:
    assert rules(read("VLLM_FOO=1 vllm serve m --fail-on-environ-validation")) == {
        "env-unknown-refused"
    }


def test_a_service_link_is_explained() -> None:
    found = only(read("VLLM_PORT=tcp://1.2.3.4:80 vllm serve m"), "env-invalid-value")
    assert "enableServiceLinks" in found.message


def test_an_unresolved_variable_is_not_judged() -> None:
    assert rules(read("export VLLM_USE_V2_MODEL_RUNNER=$X\nvllm serve m")) == set()
