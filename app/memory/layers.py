"""How many layers attend to everything, to a window, or keep a state instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from app.rules.derived import derived
from app.rules.derived.hf_config import MODEL_CONFIG, number, text_value
from app.rules.derived.model_class import is_attention_free, is_hybrid
from app.rules.derived.model_sizes import num_layers, sliding_window
from app.serve_config.serve_config import Abstain, ServeConfig

_STATE: Final = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv"})
_LOCAL: Final = frozenset({"sliding_attention", "chunked_attention", "local_attention"})
# A layer that attends and keeps a state (Zamba 2).
_BOTH: Final = "hybrid"
# `hybrid_override_pattern`, a letter a layer (Nemotron-H).
_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


@dataclass(frozen=True, slots=True)
class Layers:
    """Numbers of decoder layers by what they keep; one with attention and a state counts in both.

    Attributes:
        full, local: with attention to everything, or to a window.
        state: that keep a state.
        mlp, experts: that are nothing else; None where each layer has its own behind attention
            or state.
        total: all of them.
    """

    full: int
    local: int
    state: int
    total: int
    mlp: int | None = None
    experts: int | None = None


@derived
def layers_of(config: ServeConfig) -> Layers:
    """Count the layers by what they keep of the tokens before.

    Raises:
        Abstain: config.json does not say which of a hybrid model's layers attend.
    """
    count = num_layers(config)
    listed = _listed(config)
    if listed:
        return listed
    period = number(text_value(config, "attn_layer_period"))
    if period:
        offset = number(text_value(config, "attn_layer_offset")) or 0
        full = sum(1 for layer in range(count) if layer % period == offset)
        return Layers(full, 0, count - full, count)
    interval = number(text_value(config, "full_attention_interval"))
    if interval:
        return Layers(count // interval, 0, count - count // interval, count)
    attending = text_value(config, "full_attn_idxs")
    if isinstance(attending, list):
        return Layers(len(attending), 0, count - len(attending), count)
    if text_value(config, "model_type") == "falcon_h1":
        return Layers(count, 0, count, count)
    if is_hybrid(config):
        raise Abstain(f"which layers attend, in {MODEL_CONFIG}")
    if is_attention_free(config):
        return Layers(0, 0, count, count)
    pattern = number(text_value(config, "sliding_window_pattern"))
    if pattern:
        return Layers(count // pattern, count - count // pattern, 0, count)
    if sliding_window(config) is not None:
        return Layers(0, count, 0, count)
    return Layers(count, 0, 0, count)


def _listed(config: ServeConfig) -> Layers | None:
    """Count the kinds that config.json lists, one a layer."""
    pattern = text_value(config, "hybrid_override_pattern")
    kinds = text_value(config, "layer_types") or text_value(config, "layers_block_type")
    if isinstance(pattern, str) and pattern:
        kinds = [_LETTERS.get(letter, letter) for letter in pattern]
    if not isinstance(kinds, list) or not kinds:
        return None
    found = Counter(str(kind) for kind in kinds)
    local = sum(found[kind] for kind in _LOCAL)
    state = sum(found[kind] for kind in _STATE) + found[_BOTH]
    alone = found["mlp"] or found["moe"]
    return Layers(
        full=len(kinds) - local - state + found[_BOTH] - found["mlp"] - found["moe"],
        local=local,
        state=state,
        total=len(kinds),
        mlp=found["mlp"] if alone else None,
        experts=found["moe"] if alone else None,
    )
