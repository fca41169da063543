"""Roles of encoders: who encodes images and audio, and who takes what was encoded.

Source: `config/ec_transfer.py::ECTransferConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.rules.derived import derived
from app.serve_config.serve_config import ServeConfig

ENCODER_TRANSFER: Final = "ec_transfer_config"


@derived
def encoder_role(config: ServeConfig) -> str | None:
    """Give `ec_producer`, `ec_consumer` or `ec_both`; None without a connector."""
    if not isinstance(config[ENCODER_TRANSFER], Mapping):
        return None
    role = config[f"{ENCODER_TRANSFER}.ec_role"]
    if not isinstance(config[f"{ENCODER_TRANSFER}.ec_connector"], str):
        return None
    return role if isinstance(role, str) else None


def encodes_only(config: ServeConfig) -> bool:
    """Whether the instance encodes and does not run the language model (`is_encode_only`)."""
    return encoder_role(config) == "ec_producer"
