"""How many layers attend to everything, to a window, or keep a state instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.rules.derived import derived
from app.rules.derived.hf_config import MODEL_CONFIG, number, text_value
from app.rules.derived.model_class import is_hybrid
from app.rules.derived.model_sizes import num_layers, sliding_window
from app.serve_config.serve_config import Abstain, ServeConfig

_STATE: Final = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv"})
_LOCAL: Final = frozenset({"sliding_attention", "chunked_attention", "local_attention"})


@dataclass(frozen=True, slots=True)
class Layers:
    """Numbers of decoder layers; with `parallel` each has attention and a state."""

    full: int
    local: int
    state: int
    parallel: bool = False

    @property
    def total(self) -> int:
        """All of them."""
        return max(self.full, self.state) if self.parallel else self.full + self.local + self.state


@derived
def layers_of(config: ServeConfig) -> Layers:
    """Count the layers by what they keep of the tokens before.

    Raises:
        Abstain: config.json does not say which of a hybrid model's layers attend.
    """
    count = num_layers(config)
    kinds = text_value(config, "layer_types") or text_value(config, "layers_block_type")
    if isinstance(kinds, list) and kinds:
        local = sum(1 for kind in kinds if kind in _LOCAL)
        state = sum(1 for kind in kinds if kind in _STATE)
        return Layers(len(kinds) - local - state, local, state)
    for key in ("attn_layer_period", "full_attention_interval"):
        period = number(text_value(config, key))
        if period:
            return Layers(count // period, 0, count - count // period)
    if text_value(config, "model_type") == "falcon_h1":
        return Layers(count, 0, count, parallel=True)
    if is_hybrid(config):
        raise Abstain(f"which layers attend, in {MODEL_CONFIG}")
    pattern = number(text_value(config, "sliding_window_pattern"))
    if pattern:
        return Layers(count // pattern, count - count // pattern, 0)
    return Layers(0, count, 0) if sliding_window(config) is not None else Layers(count, 0, 0)
