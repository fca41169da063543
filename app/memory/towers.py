"""The parameters of what encodes images and audio for a language model, from config.json.

Counts matrices, as `weights.py`. A tower whose shapes are not plain is named instead of counted.
Sources: the model classes of `vllm/model_executor/models` (`siglip.py`, `clip.py`, `pixtral.py`,
`qwen2_vl.py`, `qwen2_5_vl.py`, `qwen3_vl.py`, `glm4_1v.py`, `mllama4.py`, `whisper.py`, …) and
their projectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.rules.derived import derived
from app.rules.derived.hf_config import hf_config, hf_value, number
from app.rules.derived.model_class import is_multimodal
from app.rules.derived.model_sizes import hidden_size
from app.serve_config.serve_config import Abstain, ServeConfig

Part = Mapping[str, Any]
# Where config.json describes a tower.
PARTS: Final = (
    *("vision_config", "audio_config", "vision_tower_config", "audio_encoder_config"),
    *("speech_config", "encoder_config", "sound_config", "vit_config", "visual"),
)


@dataclass(frozen=True, slots=True)
class Towers:
    """Parameters of all towers and what connects them; parts that could not be counted."""

    parameters: int = 0
    uncounted: tuple[str, ...] = ()


class _Missing(Exception):
    """config.json does not say a size."""


@derived
def towers_of(config: ServeConfig) -> Towers:
    """Count the parameters of a model's towers.

    Raises:
        Abstain: no config.json.
    """
    if not _loads_towers(config):
        return Towers()
    whole = hf_config(config)
    kind = str(hf_value(config, "model_type"))
    parts = [name for name in PARTS if isinstance(whole.get(name), Mapping)]
    if not parts:
        return Towers(uncounted=("towers",)) if _is_multimodal(config) else Towers()
    total, uncounted = 0, []
    for name in parts:
        try:
            total += _counted(kind, whole, whole[name], hidden_size(config))
        except _Missing:
            uncounted.append(name)
    return Towers(total, tuple(uncounted))


def _is_multimodal(config: ServeConfig) -> bool:
    try:
        return is_multimodal(config)
    except Abstain:
        return False


def _loads_towers(config: ServeConfig) -> bool:
    """Whether any is loaded; one whose inputs have the limit 0 is not."""
    if config["language_model_only"]:
        return False
    limits = config["limit_mm_per_prompt"]
    return not isinstance(limits, Mapping) or 0 not in limits.values()


def _counted(kind: str, whole: Part, part: Part, text: int) -> int:
    tower = _TOWERS.get(kind)
    if tower is not None:
        return tower(part, text)
    encoder = _ENCODERS.get(str(part.get("model_type")))
    projector = _PROJECTORS.get(kind)
    if encoder is None or projector is None:
        raise _Missing
    return encoder(part, _kept_layers(whole, part)) + projector(whole, part, text)


def _kept_layers(whole: Part, part: Part) -> int:
    """Give the layers up to the last whose output is used."""
    layers = _size(part, "num_hidden_layers", "encoder_layers")
    used = whole.get("vision_feature_layer")
    chosen = [entry for entry in (used if isinstance(used, list) else [used]) if type(entry) is int]
    if not chosen:
        return layers
    return max(entry if entry >= 0 else layers + entry + 1 for entry in chosen)


def _size(part: Part, *keys: str) -> int:
    for key in keys:
        given = part.get(key)
        found = number(given[0] if isinstance(given, list) and given else given)
        if found is not None:
            return found
    raise _Missing


def _plain(part: Part, layers: int, matrices: int = 2) -> int:
    """Count a vision transformer with learned positions."""
    hidden, patch = _size(part, "hidden_size"), _size(part, "patch_size")
    inner = _size(part, "intermediate_size")
    given = number(part.get("num_patches"))
    positions = given or (_size(part, "image_size") // patch) ** 2
    layer = 4 * hidden * hidden + matrices * hidden * inner
    return layers * layer + (3 * patch * patch + positions) * hidden


def _pixtral(part: Part, layers: int) -> int:
    hidden, patch = _size(part, "hidden_size"), _size(part, "patch_size")
    layer = 4 * hidden * hidden + 3 * hidden * _size(part, "intermediate_size")
    return layers * layer + 3 * patch * patch * hidden


def _whisper(part: Part, layers: int) -> int:
    width = _size(part, "d_model", "hidden_size")
    inner = _size(part, "encoder_ffn_dim", "intermediate_size")
    convolutions = 3 * width * (_size(part, "num_mel_bins") + width)
    positions = _size(part, "max_source_positions") * width
    return layers * (4 * width * width + 2 * width * inner) + convolutions + positions


def _two_layers(_whole: Part, part: Part, text: int) -> int:
    return (_size(part, "hidden_size") + text) * text


def _merged(whole: Part, part: Part, text: int) -> int:
    hidden = _size(part, "hidden_size")
    merged = hidden * _size(whole, "spatial_merge_size") ** 2
    return merged * hidden + (hidden + text) * text


def _shuffled(whole: Part, part: Part, text: int) -> int:
    ratio = whole.get("downsample_ratio", 0.5)
    if not isinstance(ratio, int | float) or not ratio:
        raise _Missing
    return (round(_size(part, "hidden_size") / ratio**2) + text) * text


def _lfm2(whole: Part, part: Part, text: int) -> int:
    inner, factor = _size(whole, "projector_hidden_size"), _size(whole, "downsample_factor")
    return (_size(part, "hidden_size") * factor**2 + text) * inner


def _one_layer(_whole: Part, part: Part, text: int) -> int:
    return _size(part, "hidden_size", "d_model") * text


def _scaled(whole: Part, part: Part, text: int) -> int:
    return _size(part, "hidden_size") * _size(whole, "scale_factor") ** 2 * text


def _qwen2(part: Part, text: int) -> int:
    width = _size(part, "embed_dim")
    ratio = part.get("mlp_ratio", 4)
    if not isinstance(ratio, int | float):
        raise _Missing
    layer = 4 * width * width + 2 * width * int(width * ratio)
    return _size(part, "depth") * layer + _patches(part, width) + _merger(part, width, text)


def _qwen2_5(part: Part, text: int) -> int:
    width = _size(part, "hidden_size")
    layer = 4 * width * width + 3 * width * _size(part, "intermediate_size")
    out = number(part.get("out_hidden_size")) or text
    return _size(part, "depth") * layer + _patches(part, width) + _merger(part, width, out)


def _qwen3(part: Part, text: int) -> int:
    width = _size(part, "hidden_size")
    layer = 4 * width * width + 2 * width * _size(part, "intermediate_size")
    out = number(part.get("out_hidden_size")) or text
    taps = part.get("deepstack_visual_indexes")
    mergers = 1 + (len(taps) if isinstance(taps, list) else 0)
    positions = _size(part, "num_position_embeddings") * width
    return (
        _size(part, "depth") * layer
        + positions
        + _patches(part, width)
        + mergers * _merger(part, width, out)
    )


def _glm4v(part: Part, text: int) -> int:
    width, inner = _size(part, "hidden_size"), _size(part, "intermediate_size")
    out = number(part.get("out_hidden_size")) or text
    layer = 4 * width * width + 3 * width * out
    merged = width * _size(part, "spatial_merge_size") ** 2 * out
    positions = (_size(part, "image_size") // _size(part, "patch_size")) ** 2 * width
    connector = merged + out * out + 3 * out * inner
    return _size(part, "depth") * layer + _patches(part, width) + positions + connector


def _llama4(part: Part, text: int) -> int:
    projected, out = _size(part, "projector_input_dim"), _size(part, "projector_output_dim")
    adapter = _size(part, "intermediate_size") * projected + projected * out
    connector = _size(part, "vision_output_dim") * text
    return _plain(part, _size(part, "num_hidden_layers")) + adapter + connector


def _patches(part: Part, width: int) -> int:
    patch = _size(part, "patch_size")
    return 3 * _size(part, "temporal_patch_size") * patch * patch * width


def _merger(part: Part, width: int, out: int) -> int:
    merged = width * _size(part, "spatial_merge_size") ** 2
    return merged * merged + merged * out


# By the model's type: the tower with its connector.
_TOWERS: Final[Mapping[str, Callable[[Part, int], int]]] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "qwen3_5": _qwen3,
    "qwen3_5_moe": _qwen3,
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v,
    "llama4": _llama4,
}
# By the tower's type.
_ENCODERS: Final[Mapping[str, Callable[[Part, int], int]]] = {
    "clip_vision_model": _plain,
    "siglip_vision_model": _plain,
    "siglip2_vision_model": _plain,
    "idefics3_vision": _plain,
    "internvl_vision": _plain,
    "pixtral": _pixtral,
    "qwen2_audio_encoder": _whisper,
}
# By the model's type.
_PROJECTORS: Final[Mapping[str, Callable[[Part, Part, int], int]]] = {
    "llava": _two_layers,
    "llava_next": _two_layers,
    "llava_onevision": _two_layers,
    "mistral3": _merged,
    "internvl": _shuffled,
    "lfm2_vl": _lfm2,
    "gemma3": _one_layer,
    "paligemma": _one_layer,
    "qwen2_audio": _one_layer,
    "idefics3": _scaled,
}
