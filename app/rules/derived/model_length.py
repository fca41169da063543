"""The longest sequence: what config.json allows and what `--max-model-len` asks for.

Source: `config/model.py::_get_and_verify_max_len`,
`model_arch_config_convertor.py::derive_max_model_len_and_key`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.rules.derived import derived
from app.rules.derived.hf_config import MODEL_CONFIG, number, text_value
from app.rules.derived.model_class import is_pooling
from app.rules.derived.model_sizes import rope_parameters, sliding_window
from app.serve_config.serve_config import Abstain, ServeConfig

LONG_LENGTH_VARIABLE: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_DEFAULT: Final = 2048


@dataclass(frozen=True, slots=True)
class DerivedLength:
    """What config.json allows; `limit` is None where it has none of the keys.

    Attributes:
        limit: tokens, after scaling rotary embeddings.
        key: where in config.json the limit comes from.
        default: the length without `--max-model-len`.
        model_max_length: a larger length that config.json allows on request.
    """

    limit: float | None
    key: str | None
    default: int
    model_max_length: int | None

    def allows(self, length: int) -> bool:
        """Whether vLLM takes a requested length without VLLM_ALLOW_LONG_MAX_MODEL_LEN."""
        if self.limit is None or length <= self.limit:
            return True
        return self.model_max_length is not None and length <= self.model_max_length


@derived
def derived_max_model_len(config: ServeConfig) -> DerivedLength:
    """Work out the length that vLLM derives.

    Raises:
        Abstain: config.json is missing, or a pooling model's tokenizer limits the length.
    """
    declared = declared_max_model_len(config)
    if text_value(config, "position_embedding_type") == "absolute" and is_pooling(config):
        raise Abstain("`model_max_length` in the model's tokenizer_config.json")
    return declared


@derived
def declared_max_model_len(config: ServeConfig) -> DerivedLength:
    """Work out the length that config.json allows, which a tokenizer may lower.

    Raises:
        Abstain: config.json is missing.
    """
    limit, key = _limit_by_key(config)
    window = sliding_window(config)
    disabled = bool(config["disable_sliding_window"])
    if disabled and window is not None and (limit is None or window < limit):
        limit, key = float(window), "sliding_window"
    if limit is None:
        return DerivedLength(None, None, _DEFAULT, None)
    default: float | None = None
    ropes = rope_parameters(config)
    kind = text_value(config, "model_type")
    if ropes and "gemma3" not in str(kind):
        scaled = config.catalogue.model_facts.scaled_rope_types
        factor: float = 1.0
        for rope in ropes:
            if rope["rope_type"] in scaled:
                continue
            given = rope.get("factor", factor)
            if given is not None and not isinstance(given, int | float):
                raise Abstain(f"a rope `factor` that is a number in {MODEL_CONFIG}")
            factor = 1.0 if given is None else float(given)
            if rope["rope_type"] == "yarn":
                original = number(rope.get("original_max_position_embeddings"))
                limit = limit if original is None else float(original)
        limit *= factor
    if any(rope["rope_type"] == "longrope" for rope in ropes):
        original = number(text_value(config, "original_max_position_embeddings"))
        default = None if original is None else float(original)
    return DerivedLength(
        limit,
        key,
        int(limit if default is None else default),
        number(text_value(config, "model_max_length")),
    )


@derived
def max_model_len(config: ServeConfig) -> int:
    """Give the length that vLLM settles on; a refused one is given as it was asked for.

    `-1` and `auto` give what config.json allows, which the engine may lower at start.

    Raises:
        Abstain: config.json is needed and missing.
    """
    wanted = config["max_model_len"]
    if isinstance(wanted, int) and wanted != -1:
        return wanted
    return derived_max_model_len(config).default


def allows_longer_max_model_len(config: ServeConfig) -> bool:
    """Whether `VLLM_ALLOW_LONG_MAX_MODEL_LEN` lets any length through."""
    variable = config.variable(LONG_LENGTH_VARIABLE)
    if variable is None:
        return False
    return variable.value.strip().lower() in {"1", "true"}


def _limit_by_key(config: ServeConfig) -> tuple[float | None, str | None]:
    limit: float | None = None
    key = None
    for name in _KEYS:
        value = number(text_value(config, name))
        if value is not None and (limit is None or value < limit):
            limit, key = float(value), name
    longer = number(text_value(config, "model_max_length"))
    if longer:
        limit, key = float(longer), "model_max_length"
    return limit, key
