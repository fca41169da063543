"""What rules ask about the model and the machine; the rest is in `app.rules.derived`.

Every function raises `Abstain` with the missing fact in the words of the `not_checked` list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from app.rules.derived.devices import MachineKind
from app.rules.derived.hardware import Machine, machine_of
from app.rules.derived.model import (
    MODEL_CONFIG,
    architectures,
    has_ability,
    hf_value,
    is_diffusion,
    is_hybrid,
    runner_type,
)
from app.serve_config.serve_config import Abstain, ServeConfig

__all__ = [
    "MODEL_CONFIG",
    "Machine",
    "MachineKind",
    "architectures",
    "has_ability",
    "hf_value",
    "is_diffusion",
    "is_hybrid",
    "is_mixture_of_experts",
    "machine_of",
    "runs_generate",
    "world_size",
]

_EXPERTS_IN_NAME: Final = re.compile(r"moe|mixtral", re.IGNORECASE)


def is_mixture_of_experts(config: ServeConfig) -> bool:
    """Whether config.json counts experts.

    Source: `transformers_utils/model_arch_config_convertor.py::get_num_experts`.

    Raises:
        Abstain: it does not, but the class name says so; the key may be left at its default.
    """
    names = architectures(config)
    text = hf_value(config, "text_config")
    for key in config.catalogue.expert_count_keys:
        count = text.get(key) if isinstance(text, Mapping) else hf_value(config, key)
        if count is not None:
            return bool(count)
    if hf_value(config, "block_configs") or any(_EXPERTS_IN_NAME.search(n) for n in names):
        raise Abstain(f"the number of experts in {MODEL_CONFIG}")
    return False


def runs_generate(config: ServeConfig) -> bool:
    """Whether the model generates, rather than pools (`config/model.py::_get_runner_type`)."""
    return runner_type(config) == "generate"


def world_size(config: ServeConfig, axis: str) -> int:
    """Give a parallel size, such as `tensor_parallel_size`; 1 where it is not said."""
    size = config[axis]
    return size if isinstance(size, int) else 1
