"""What rules ask about the model and the machine, and when nobody told them.

Every function raises `Abstain` with the missing fact in the words of the `not_checked` list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from app.serve_config.serve_config import Abstain, ServeConfig

MODEL_CONFIG: Final = "the model's config.json (`model_config`)"

_EXPERTS_IN_NAME: Final = re.compile(r"moe|mixtral", re.IGNORECASE)
_GENERATE_SUFFIXES: Final = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")


class MachineKind(StrEnum):
    """The platform that vLLM picks on a machine."""

    CUDA = "cuda"
    ROCM = "rocm"
    CPU = "cpu"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Machine:
    """The platform; `assumed` where no hardware was given, and then a CUDA GPU."""

    kind: MachineKind
    assumed: bool = False

    @property
    def has_triton(self) -> bool:
        """Whether Triton has a driver there; the CPU wheels of vLLM come without one.

        Raises:
            Abstain: a platform whose plugin may or may not bring one.
        """
        if self.kind is MachineKind.OTHER:
            raise Abstain("whether Triton works on this hardware")
        return self.kind is not MachineKind.CPU


_ROCM: Final = re.compile(r"\b(amd|instinct|radeon|mi\d{2,3}\w*|gfx\w+)\b", re.IGNORECASE)
_OTHER: Final = re.compile(
    r"\b(tpu|gaudi\d?|hpu|xpu|arc|max 1550|ascend\w*|npu|neuron|trainium\d?)\b", re.IGNORECASE
)


def machine_of(config: ServeConfig) -> Machine:
    """Tell the platform from the name of the hardware."""
    name = config.hardware.gpu if config.hardware is not None else None
    if name is None:
        return Machine(MachineKind.CUDA, assumed=True)
    if name.strip().lower() == "cpu":
        return Machine(MachineKind.CPU)
    if _ROCM.search(name):
        return Machine(MachineKind.ROCM)
    if _OTHER.search(name):
        return Machine(MachineKind.OTHER)
    return Machine(MachineKind.CUDA)


def hf_value(config: ServeConfig, key: str) -> Any:
    """Read a top-level key of config.json as `--hf-overrides` leaves it; None if absent.

    Raises:
        Abstain: neither gives it.
    """
    overrides = config["hf_overrides"]
    if isinstance(overrides, Mapping) and key in overrides:
        return config[f"hf_overrides.{key}"]
    if config.model_config is None:
        raise Abstain(MODEL_CONFIG)
    return config.model_config.get(key)


def architectures(config: ServeConfig) -> tuple[str, ...]:
    """Give the model classes that config.json names.

    Raises:
        Abstain: no config.json, or it names none (vLLM then derives one from `model_type`).
    """
    names = hf_value(config, "architectures")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise Abstain(f"`architectures` in {MODEL_CONFIG}")
    return tuple(names)


def has_ability(config: ServeConfig, ability: str) -> bool:
    """Whether the model class that vLLM takes has an ability, such as `is_hybrid`.

    Raises:
        Abstain: the class is unknown, or could not be inspected for this version.
    """
    known = config.catalogue.registries.get("model_archs", ())
    name = next((a for a in architectures(config) if a in known), None)
    answer = None if name is None else config.catalogue.has_ability(name, ability)
    if answer is None:
        raise Abstain(f"whether {', '.join(architectures(config))} has `{ability}`")
    return answer


def is_hybrid(config: ServeConfig) -> bool:
    """Whether attention and state-space layers alternate (`config/model.py::is_hybrid`)."""
    if not has_ability(config, "is_hybrid"):
        return False
    layers = hf_value(config, "layer_types")
    return not isinstance(layers, list) or any(layer != "attention" for layer in layers)


def is_diffusion(config: ServeConfig) -> bool:
    """Whether it is a discrete diffusion model (`config/model.py::is_diffusion`)."""
    return hf_value(config, "canvas_length") is not None


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
    runner, convert = config["runner"], config["convert"]
    if runner not in (None, "auto"):
        return bool(runner == "generate")
    if convert not in (None, "auto", "none"):
        return False
    if any(a in config.catalogue.registries.get("model_archs", ()) for a in architectures(config)):
        return not has_ability(config, "is_pooling_model")
    return any(a.endswith(_GENERATE_SUFFIXES) for a in architectures(config))


def world_size(config: ServeConfig, axis: str) -> int:
    """Give a parallel size, such as `tensor_parallel_size`; 1 where it is not said."""
    size = config[axis]
    return size if isinstance(size, int) else 1
