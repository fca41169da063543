"""What a DSpark draft for Qwen3-Omni has to be.

Source: `config/speculative.py::_validate_qwen3_omni_dspark`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.configuration.speculative_method import AREA, NGRAM, without_speculation
from app.rules.declaration import Example
from app.rules.derived.hf_config import hf_config, hf_text_config
from app.rules.registry import rule
from app.rules.speculation import DRAFT_CONFIG, speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity

_TARGETS: Final = frozenset(
    {"Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"}
)
_CLASS: Final = "Qwen3OmniDSparkModel"
_NOISE: Final = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_TEXT: Final = {
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_hidden_layers": 48,
    "vocab_size": 152064,
}
_TARGET: Final = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
    "model_type": "qwen3_omni_moe",
    "thinker_config": {"text_config": _TEXT},
}
_DRAFT: Final = {
    "architectures": [_CLASS],
    "model_type": "qwen3",
    "block_size": 7,
    "target_hidden_size": 2048,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "target_layer_ids": [2, 24, 45],
    "use_aux_hidden_state": True,
    "markov_rank": 64,
    "markov_head_type": "vanilla",
    "vocab_size": 152064,
    "mask_token_id": 151669,
}
_COMMAND: Final = (
    """vllm serve m --speculative-config '{"method": "dspark", "model": "draft", """
    """"num_speculative_tokens": 7}'"""
)


@rule(
    id="speculative-qwen3-omni-draft",
    title="The DSpark draft does not fit Qwen3-Omni",
    explanation="DSpark for Qwen3-Omni reads hidden states of the thinker, so the draft must be "
    "made for it: its class, the number of drafted tokens (the block size it was trained with), "
    "hidden sizes, attention heads, the layers it reads, the Markov head, vocabulary, noise token "
    "and plain rotary embeddings are all checked.",
    remedy="Use a draft that was trained for this Qwen3-Omni, with its block size.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/speculative.py::_validate_qwen3_omni_dspark",
    versions=">=0.29",
    covers=(
        "qwen3omni-arch",
        "qwen3omni-block",
        "qwen3omni-tokens",
        "qwen3omni-text-config",
        "qwen3omni-target-hidden",
        "qwen3omni-hidden",
        "qwen3omni-attn-target",
        "qwen3omni-attn-draft",
        "qwen3omni-layers-empty",
        "qwen3omni-layers-type",
        "qwen3omni-layers-order",
        "qwen3omni-layers-range",
        "qwen3omni-aux",
        "qwen3omni-markov-rank",
        "qwen3omni-markov-type",
        "qwen3omni-anchor",
        "qwen3omni-vocab",
        "qwen3omni-draft-vocab",
        "qwen3omni-noise",
        "qwen3omni-mrope",
    ),
    bad=(
        Example(
            _COMMAND,
            model_config=_TARGET,
            draft_model_config={**_DRAFT, "architectures": ["Qwen3DSparkModel"]},
        ),
        Example(_COMMAND, model_config=_TARGET, draft_model_config={**_DRAFT, "block_size": 5}),
        Example(_COMMAND, model_config=_TARGET, draft_model_config={**_DRAFT, "hidden_size": 1024}),
        Example(
            _COMMAND,
            model_config=_TARGET,
            draft_model_config={**_DRAFT, "num_key_value_heads": 8},
        ),
        Example(
            _COMMAND,
            model_config=_TARGET,
            draft_model_config={**_DRAFT, "target_layer_ids": [24, 2]},
        ),
        Example(
            _COMMAND, model_config=_TARGET, draft_model_config={**_DRAFT, "markov_head_type": "x"}
        ),
        Example(
            _COMMAND,
            model_config=_TARGET,
            draft_model_config={**_DRAFT, "draft_vocab_size": 200000},
        ),
        Example(_COMMAND, model_config=_TARGET, draft_model_config={**_DRAFT, "mask_token_id": -1}),
    ),
    good=(
        Example(_COMMAND, model_config=_TARGET, draft_model_config=_DRAFT),
        Example(f"vllm serve m {NGRAM}", model_config=_TARGET),
    ),
)
def qwen3_omni_draft(config: ServeConfig) -> Iterator[Finding]:
    """Walk through the draft's config.json in vLLM's order."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft or not _is_target(config):
        return
    if speculation.method != "dspark":
        return
    draft = config.draft_model_config
    if draft is None:
        raise Abstain(DRAFT_CONFIG)
    text = hf_text_config(config)
    problem = (
        _class_and_block(draft, speculation.tokens)
        or _sizes(draft, text)
        or _layers(draft, text)
        or _markov(draft)
        or _vocabulary(draft, text)
    )
    if problem is not None:
        yield qwen3_omni_draft.finding(
            f"the draft {speculation.draft_name} does not fit Qwen3-Omni: {problem}",
            location=speculation.place,
            fix=without_speculation(speculation),
        )


def _is_target(config: ServeConfig) -> bool:
    whole = hf_config(config)
    names = whole.get("architectures")
    listed = isinstance(names, list) and any(name in names for name in _TARGETS)
    return whole.get("model_type") == "qwen3_omni_moe" or listed


def _class_and_block(draft: Mapping[str, Any], tokens: int | None) -> str | None:
    classes = draft.get("architectures")
    if not isinstance(classes, list) or _CLASS not in classes:
        return f"its architecture is not {_CLASS}"
    block = _value(draft, "block_size")
    if block is None:
        block = _value(draft, "dspark_block_size")
    if not _positive(block):
        return "its config.json has no block_size"
    if tokens != block:
        return f"{tokens} tokens are to be drafted, and its block_size is {block}"
    return None


def _sizes(draft: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    hidden = _known(text, "hidden_size")
    for key in ("target_hidden_size", "hidden_size"):
        if draft.get(key) != hidden:
            return f"its {key} is {draft.get(key)}, and the thinker's hidden size is {hidden}"
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        wanted, given = _attention(text, key), _attention(draft, key)
        if wanted is None:
            raise Abstain(f"`{key}` of the thinker in the model's config.json")
        if not _positive(wanted):
            return f"the thinker's {key} is {wanted}"
        if given != wanted:
            return f"its {key} is {given}, and the thinker's is {wanted}"
    return None


def _layers(draft: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    nested = draft.get("dflash_config")
    layers = nested.get("target_layer_ids") if isinstance(nested, Mapping) else None
    for key in ("dspark_target_layer_ids", "target_layer_ids"):
        layers = draft.get(key) if layers is None else layers
    if not isinstance(layers, list) or not layers:
        return "its config.json has no target_layer_ids"
    if not all(_whole(layer) for layer in layers):
        return "its target_layer_ids are not all integers"
    if layers != sorted(set(layers)):
        return f"its target_layer_ids {layers} do not increase"
    count = _known(text, "num_hidden_layers")
    if layers[0] < 0 or layers[-1] >= count:
        return f"its target_layer_ids {layers} are not all among the thinker's {count} layers"
    return None


def _markov(draft: Mapping[str, Any]) -> str | None:
    if _value(draft, "use_aux_hidden_state") is not True:
        return "use_aux_hidden_state is not true"
    if not _positive(draft.get("markov_rank")):
        return "its config.json has no markov_rank"
    if draft.get("markov_head_type") != "vanilla":
        return f"its markov_head_type is {draft.get('markov_head_type')!r} and not 'vanilla'"
    anchored = draft.get("sample_from_anchor", True) is True
    if not anchored or draft.get("dspark_bonus_anchor", False) is not False:
        return "it does not sample from the anchor"
    return None


def _vocabulary(draft: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    own, target = draft.get("vocab_size"), _known(text, "vocab_size")
    if not isinstance(own, int) or not _positive(own):
        return f"its vocab_size is {own}"
    output = draft.get("draft_vocab_size")
    output = own if output is None else output
    if not isinstance(output, int) or not _positive(output) or output > target:
        return f"its draft_vocab_size is {output}, and the thinker has {target} tokens"
    nested = draft.get("dflash_config")
    noise = nested.get("mask_token_id") if isinstance(nested, Mapping) else None
    noise = next((draft[k] for k in _NOISE if noise is None and draft.get(k) is not None), noise)
    if not _whole(noise) or not isinstance(noise, int) or not 0 <= noise < own:
        return f"its noise token is {noise}, outside its {own} tokens"
    ropes = (draft.get("rope_parameters"), draft.get("rope_scaling"))
    multimodal = any(isinstance(rope, Mapping) and "mrope_section" in rope for rope in ropes)
    if draft.get("mrope_section") is not None or multimodal:
        return "it has multimodal rotary embeddings (mrope_section)"
    return None


def _attention(values: Mapping[str, Any], key: str) -> Any:
    given = values.get(key)
    if given is not None:
        return given
    heads = values.get("num_attention_heads")
    if key == "num_key_value_heads":
        return heads
    hidden = values.get("hidden_size")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0:
        return hidden // heads
    return None


def _value(draft: Mapping[str, Any], key: str) -> Any:
    for section in ("dflash_config", "eagle_config"):
        nested = draft.get(section)
        if isinstance(nested, Mapping) and nested.get(key) is not None:
            return nested[key]
    return draft.get(key)


def _known(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if not isinstance(value, int):
        raise Abstain(f"`{key}` of the thinker in the model's config.json")
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return _whole(value) and value > 0
