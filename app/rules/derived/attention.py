"""What is asked of attention: the backend, and HiSparse.

The backend that layers end up with is chosen by the workers, and is not settled here.
"""

from __future__ import annotations

from typing import Any, Final

from app.rules.derived import derived
from app.rules.derived.kv_transfer import kv_transfer
from app.serve_config.serve_config import ServeConfig

BACKEND: Final = "attention_backend"
CONFIG: Final = "attention_config"
HISPARSE: Final = "attention_config.hisparse_config"
HISPARSE_CONNECTOR: Final = "HiSparseConnector"
# Names that only choose the decode kernel of MiniMax M3 (`AttentionConfig.__post_init__`).
MSA_ALIASES: Final = {"CUTLASS_MSA": "cutlass", "TRITON_MSA": "triton"}


@derived
def flag_backend(config: ServeConfig) -> str | None:
    """Give the backend of `--attention-backend` in capitals, `AUTO` included."""
    given = config[BACKEND]
    return given.upper() if isinstance(given, str) else None


@derived
def config_backend(config: ServeConfig) -> str | None:
    """Give the backend of `--attention-config`, as its class leaves it: `auto` is none."""
    given: Any = config[f"{CONFIG}.backend"]
    if not isinstance(given, str) or given.upper() == "AUTO":
        return None
    return None if given.upper() in MSA_ALIASES else given.upper()


@derived
def asked_backend(config: ServeConfig) -> str | None:
    """Give the backend for all layers that was asked for; None leaves it to vLLM."""
    flag = flag_backend(config)
    return config_backend(config) if flag in {None, "AUTO"} else flag


@derived
def uses_hisparse(config: ServeConfig) -> bool:
    """Whether HiSparse is on, as it was asked for or a connector brings it.

    Source: `config/vllm.py::VllmConfig.__post_init__`, since 0.30.
    """
    fields = config.catalogue.config_classes["AttentionConfig"].fields
    if "hisparse_config" not in fields:
        return False
    if config[HISPARSE] is not None:
        return True
    transfer = kv_transfer(config)
    return transfer is not None and transfer.has(HISPARSE_CONNECTOR)
