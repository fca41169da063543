"""Which connector moves KV caches, and which role an encoder has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.rules.derived.kv_transfer import kv_transfer, supports_hybrid
from app.rules.derived.multimodal import encoder_role, encodes_only
from app.serve_config.serve_config import UnresolvedValue
from tests.rules.derived.deriving import config_of

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


def kv(**keys: Any) -> str:
    return f"--kv-transfer-config '{json.dumps(keys)}'"


def several(*names: str) -> str:
    children = [{"kv_connector": name, "kv_role": "kv_both"} for name in names]
    extra = {"connectors": children}
    return kv(kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config=extra)


@pytest.mark.parametrize(
    ("options", "connector", "role"),
    [
        (kv(**NIXL), "NixlConnector", "kv_producer"),
        (kv(kv_role="kv_both"), None, "kv_both"),
        ("--kv-offloading-size 4", "OffloadingConnector", "kv_both"),
        (f"--kv-offloading-size 4 {kv(**NIXL)}", "OffloadingConnector", "kv_both"),
        (
            "VLLM_USE_SIMPLE_KV_OFFLOAD=1 --kv-offloading-size 4",
            "SimpleCPUOffloadConnector",
            "kv_both",
        ),
        (
            "--kv-offloading-size 4 --kv-offloading-backend lmcache",
            "LMCacheMPConnector",
            "kv_both",
        ),
    ],
)
def test_the_connector_that_vllm_settles_on(options: str, connector: str | None, role: str) -> None:
    moved = kv_transfer(config_of(options))
    assert moved is not None
    assert (moved.connector, moved.role) == (connector, role)


def test_without_options_nothing_is_moved() -> None:
    assert kv_transfer(config_of("")) is None


def test_what_offloading_replaces_is_remembered() -> None:
    moved = kv_transfer(config_of(f"--kv-offloading-size 4 {kv(**NIXL)}"))
    assert moved is not None
    assert moved.asked == "NixlConnector"
    assert moved.offloads


def test_a_connector_of_several_has_each_of_them() -> None:
    moved = kv_transfer(config_of(several("NixlConnector", "OffloadingConnector")))
    assert moved is not None
    assert moved.has("NixlConnector")
    assert moved.has("MultiConnector")
    assert not moved.has("MooncakeConnector")


def test_an_open_value_is_a_question() -> None:
    with pytest.raises(UnresolvedValue):
        kv_transfer(config_of("--kv-offloading-size $SIZE"))


@pytest.mark.parametrize(
    ("options", "version", "expected"),
    [
        (kv(**NIXL), "0.32.0", True),
        (kv(kv_connector="LMCacheConnectorV1", kv_role="kv_both"), "0.32.0", False),
        (kv(kv_connector="MoRIIOConnector", kv_role="kv_both"), "0.28.0", False),
        (kv(kv_connector="MoRIIOConnector", kv_role="kv_both"), "0.30.0", True),
        (kv(kv_connector="Ours", kv_role="kv_both", kv_connector_module_path="a"), "0.32.0", None),
        (several("NixlConnector", "OffloadingConnector"), "0.32.0", True),
        (several("NixlConnector", "ExampleConnector"), "0.32.0", False),
        (several("NixlConnector", "Ours"), "0.32.0", None),
        (several(), "0.32.0", False),
    ],
)
def test_hybrid_caches_need_every_connector(
    options: str, version: str, expected: bool | None
) -> None:
    config = config_of(options, version=version)
    moved = kv_transfer(config)
    assert moved is not None
    assert supports_hybrid(config, moved) is expected


@pytest.mark.parametrize(
    ("keys", "role", "alone"),
    [
        ({"ec_connector": "ECExampleConnector", "ec_role": "ec_producer"}, "ec_producer", True),
        ({"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}, "ec_both", False),
        ({"ec_role": "ec_producer"}, None, False),
    ],
)
def test_an_encoder_has_a_role_with_a_connector(
    keys: dict[str, str], role: str | None, alone: bool
) -> None:
    config = config_of(f"--ec-transfer-config '{json.dumps(keys)}'")
    assert encoder_role(config) == role
    assert encodes_only(config) is alone
