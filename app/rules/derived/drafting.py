"""The draft model as a configuration of its own.

The steps of `app.rules.derived` work on it as on the served model: `vocab_size(draft_view(c))`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.rules.derived import derived
from app.rules.facts import world_size
from app.rules.speculation import DRAFT_CONFIG, speculation_of
from app.serve_config.serve_config import Abstain, Origin, ServeConfig, Setting

# What the served model is told and its draft is not.
_NOT_FROM_TARGET: Final = ("hf_overrides", "disable_sliding_window", "convert")


@derived
def draft_view(config: ServeConfig) -> ServeConfig:
    """Give the draft model as a configuration of its own, for the steps of `derived`.

    Source: the `ModelConfig(runner="draft", ...)` of `SpeculativeConfig.__post_init__`.

    Raises:
        Abstain: there is no draft, or nobody gave its config.json.
    """
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        raise Abstain("a draft model")
    raw = config.draft_model_config
    if raw is None and speculation.value("model") is None:
        raw = config.model_config
    if raw is None:
        raise Abstain(DRAFT_CONFIG)
    own = {
        "runner": "draft",
        "max_model_len": speculation.whole("max_model_len"),
        **dict.fromkeys(_NOT_FROM_TARGET),
    }
    settings = {dest: Setting(value, Origin.DERIVED) for dest, value in own.items()}
    return replace(config, settings={**config.settings, **settings}, model_config=raw, memo={})


@derived
def draft_tensor_parallel_size(config: ServeConfig) -> int:
    """Give over how many GPUs the draft is split.

    Source: `SpeculativeConfig._verify_and_get_draft_tp`.
    """
    speculation = speculation_of(config)
    given = None if speculation is None else speculation.whole("draft_tensor_parallel_size")
    if speculation is None or given is not None:
        return given or 1
    if speculation.method == "mlp_speculator":
        return 1
    return world_size(config, "tensor_parallel_size")
