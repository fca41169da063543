"""Layers that keep a state: how prefixes of it are cached, its dtype, the kernels.

Source: `model_executor/models/config.py::MambaModelConfig.verify_and_update_config`,
`config/vllm.py::VllmConfig.validate_mamba_cached_kernel`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from app.rules.derived import derived
from app.rules.derived.model import has_ability, hf_value, is_hybrid, model_class, text_value
from app.rules.derived.parallel import since
from app.rules.derived.scheduler import enable_prefix_caching
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig

REPLAY: Final = "use_replayssm"
BACKEND: Final = "mamba_backend"
CACHE_MODE: Final = "mamba_cache_mode"
SSM_DTYPE: Final = "mamba_ssm_cache_dtype"
_NO_PREFIXES: Final = "none"
_ALIGNED: Final = "align"
# Models whose gated delta attention recovers the state after drafts.
RECOVERING: Final = frozenset({"KimiLinearForCausalLM", "KimiK3ForConditionalGeneration"})


class Replay(StrEnum):
    """How a state is replayed (`--use-replayssm`)."""

    PLAIN = "ReplaySSM"
    DRAFTS = "ReplaySSM with drafts"
    RECOVERY = "RecoverSSM"


@derived
def mamba_backend(config: ServeConfig) -> str:
    """Give the kernels for states in capitals, as vLLM looks them up."""
    given = config[BACKEND]
    if not isinstance(given, str):
        raise Abstain(f"a valid {BACKEND}")
    return given.upper()


@derived
def keeps_states(config: ServeConfig) -> bool:
    """Whether vLLM settles how states of this model are cached.

    Raises:
        Abstain: the model is not known.
    """
    if is_hybrid(config):
        return True
    return _config_class(config) == "MambaModelConfig"


@derived
def cache_mode(config: ServeConfig) -> str:
    """Give how prefixes of states are cached: `none`, `align` or `all`, once that is settled.

    Raises:
        Abstain: the model is not known.
    """
    asked = config[CACHE_MODE]
    if since(config, "0.33") or not isinstance(asked, str):
        asked = _NO_PREFIXES  # since 0.33 the option no longer counts
    if not keeps_states(config):
        return asked
    if not enable_prefix_caching(config):
        return _NO_PREFIXES
    if asked == _NO_PREFIXES:
        return _ALIGNED
    if asked == "all" and not has_ability(config, "supports_mamba_prefix_caching"):
        return _ALIGNED
    return asked


@derived
def ssm_dtype(config: ServeConfig) -> str:
    """Give the dtype of cached states; `auto` is the model's own.

    Raises:
        Abstain: the model is not known and decides.
    """
    asked = config[SSM_DTYPE]
    if not isinstance(asked, str):
        raise Abstain(f"a valid {SSM_DTYPE}")
    if asked != "auto":
        return asked
    kind = _config_class(config)
    if kind == "NemotronHForCausalLMConfig":
        return str(hf_value(config, "mamba_ssm_cache_dtype") or "float32")
    if kind == "NemotronHNanoVLV2Config":
        return str(text_value(config, "mamba_ssm_cache_dtype") or "float32")
    if kind.startswith("Qwen3_5"):
        return str(text_value(config, "mamba_ssm_dtype") or asked)
    return asked


@derived
def replay(config: ServeConfig) -> Replay | None:
    """Give how states are replayed; None where they are not.

    Raises:
        Abstain: the model or the draft is needed and not known.
    """
    if not config[REPLAY]:
        return None
    if not drafted_tokens(config) or not since(config, "0.29"):
        return Replay.PLAIN
    if not since(config, "0.32") or model_class(config) in RECOVERING:
        return Replay.RECOVERY
    return Replay.DRAFTS


def drafted_tokens(config: ServeConfig) -> int:
    """Give how many tokens are drafted in a step; 0 without speculation."""
    speculation = speculation_of(config)
    return 0 if speculation is None else speculation.tokens or 0


@derived
def _config_class(config: ServeConfig) -> str:
    """Name the class that changes the configuration for the model (`MODELS_CONFIG_MAP`)."""
    classes = config.catalogue.registries.get("arch_specific_config") or {}
    return str(classes.get(model_class(config), ""))
