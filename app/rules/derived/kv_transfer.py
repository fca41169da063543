"""Which connector moves KV caches between instances, or between GPU and host.

Source: `config/kv_transfer.py::KVTransferConfig`,
`config/vllm.py::VllmConfig._post_init_kv_transfer_config`,
`distributed/kv_transfer/kv_connector/factory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.rules.derived import derived
from app.serve_config.serve_config import ServeConfig

TRANSFER: Final = "kv_transfer_config"
OFFLOADING: Final = "kv_offloading_size"
BACKEND: Final = "kv_offloading_backend"
SIMPLE_OFFLOAD: Final = "VLLM_USE_SIMPLE_KV_OFFLOAD"
MULTI: Final = "MultiConnector"


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """What moves KV caches.

    Attributes:
        connector: its registered name, or a class in `module_path`; None if nothing names one.
        asked: the connector of `--kv-transfer-config`, which offloading replaces.
        role: `kv_producer`, `kv_consumer` or `kv_both`; None if not said.
        extra: what the connector itself reads.
        module_path: where its class is, if not in vLLM.
        offloads: whether `--kv-offloading-size` chose the connector.
    """

    connector: str | None
    asked: str | None
    role: str | None
    extra: Mapping[str, Any]
    module_path: str | None
    offloads: bool

    @property
    def children(self) -> tuple[Mapping[str, Any], ...]:
        """What a `MultiConnector` is made of."""
        listed = self.extra.get("connectors") if self.connector == MULTI else None
        if not isinstance(listed, list):
            return ()
        return tuple(child for child in listed if isinstance(child, Mapping))

    def has(self, name: str) -> bool:
        """Whether a connector takes part, directly or in a `MultiConnector`."""
        return self.connector == name or any(
            child.get("kv_connector") == name for child in self.children
        )

    @property
    def is_consumer(self) -> bool:
        """Whether the instance takes KV caches from others."""
        return self.connector is not None and self.role in {"kv_consumer", "kv_both"}


@derived
def kv_transfer(config: ServeConfig) -> KvTransfer | None:
    """Give what moves KV caches once vLLM has settled it; None where nothing does.

    Raises:
        UnresolvedValue: an option or variable is not known yet.
    """
    given = config[TRANSFER]
    given = given if isinstance(given, Mapping) else None
    size = config[OFFLOADING]
    if given is None and size is None:
        return None
    keys = {
        key: _text(config[f"{TRANSFER}.{key}"])
        for key in ("kv_connector", "kv_role", "kv_connector_module_path")
    }
    extra = config[f"{TRANSFER}.kv_connector_extra_config"]
    asked = keys["kv_connector"]
    connector, role = asked, keys["kv_role"]
    if size is not None:
        connector, role = _offloading_connector(config) or asked, "kv_both"
    return KvTransfer(
        connector,
        asked,
        role,
        extra if isinstance(extra, Mapping) else {},
        keys["kv_connector_module_path"],
        size is not None,
    )


def _offloading_connector(config: ServeConfig) -> str | None:
    backend = config[BACKEND]
    if backend == "lmcache":
        return "LMCacheMPConnector"
    if backend != "native":
        return None
    variable = config.variable(SIMPLE_OFFLOAD)
    simple = variable is not None and variable.value.strip() not in {"", "0"}
    return "SimpleCPUOffloadConnector" if simple else "OffloadingConnector"


def supports_hybrid(config: ServeConfig, transfer: KvTransfer) -> bool | None:
    """Whether the connector works with the hybrid KV cache manager (`SupportsHMA`).

    None where that is not known: a class of somebody else, or a name that is not registered.
    """
    if transfer.connector == MULTI:
        if not transfer.children:
            return False
        answers = [
            _supports(config, child.get("kv_connector"), child.get("kv_connector_module_path"))
            for child in transfer.children
        ]
        if False in answers:
            return False
        return None if None in answers else True
    return _supports(config, transfer.connector, transfer.module_path)


def _supports(config: ServeConfig, name: object, module_path: object) -> bool | None:
    known = config.catalogue.registries.get("kv_connectors", ())
    if module_path or not isinstance(name, str) or name not in known or name == MULTI:
        return None
    hybrid = config.catalogue.registries.get("kv_connectors_hybrid")
    return None if hybrid is None else name in hybrid


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
