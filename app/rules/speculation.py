"""The speculative configuration as vLLM reads it.

Source: `engine/arg_utils.py::create_speculative_config` and
`config/speculative.py::SpeculativeConfig.__post_init__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.serve_config.serve_config import Abstain, ServeConfig, Unresolved, UnresolvedValue
from app.verdict.location import Location

# Flags that give one key of the configuration, and the key.
_SHORTHANDS: Final = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
# Methods that a draft model's name or config.json cannot change.
_FIXED: Final = frozenset(
    {"eagle", "eagle3", "dflash", "dspark", "ngram", "ngram_gpu", "suffix", "custom_class"}
    | {"extract_hidden_states"}
)
# What in the name of a draft model decides, in vLLM's order.
_BY_NAME: Final = (
    ("eagle-", "eagle"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
)
# Methods that hold unless the name says otherwise.
_BY_METHOD: Final = frozenset({"mtp", "medusa", "mlp_speculator"})
_DRAFT_CONFIG: Final = "the draft model's config.json"


@dataclass(frozen=True, slots=True)
class Speculation:
    """What was given: the keys, and the settings that gave them."""

    keys: Mapping[str, Any]
    dests: tuple[str, ...]
    place: Location | None

    @property
    def method(self) -> str:
        """The method that vLLM settles on.

        Raises:
            Abstain: that depends on the draft model's config.json.
        """
        given, model = self._text("method"), self._text("model")
        if given == "[ngram]":
            return "ngram"
        if given is not None and given.endswith("_mtp"):
            given = "mtp"
        if given in _FIXED:
            return given
        if given is None and model in {"ngram", "[ngram]"}:
            return "ngram"
        if given is None and model is not None and _is_import_path(model):
            return "custom_class"
        hints = (method for part, method in _BY_NAME if part in (model or "").lower())
        hinted = next(hints, None)
        if hinted is not None:
            return hinted
        if given in _BY_METHOD:
            return given
        raise Abstain(_DRAFT_CONFIG)

    def value(self, key: str) -> Any:
        """Give one key, or None if it was not given.

        Raises:
            UnresolvedValue: it depends on an unresolved variable.
        """
        value = self.keys.get(key)
        if isinstance(value, Unresolved):
            raise UnresolvedValue(value.needs, self.place)
        return value

    def _text(self, key: str) -> str | None:
        value = self.value(key)
        if value is not None and not isinstance(value, str):
            raise Abstain(f"a speculative {key} that can be read")
        return value


def speculation_of(config: ServeConfig) -> Speculation | None:
    """Give the speculative configuration, or None where there is none.

    Raises:
        UnresolvedValue: a part of it depends on an unresolved variable.
    """
    whole = config["speculative_config"]
    dests = ["speculative_config"] if whole is not None else []
    keys = dict(whole) if isinstance(whole, Mapping) else {}
    keys = {str(key).replace("-", "_"): value for key, value in keys.items()}
    for dest, key in _SHORTHANDS.items():
        if config[dest] is not None:
            keys[key] = config[dest]
            dests.append(dest)
    if not dests:
        return None
    return Speculation(keys, tuple(dests), config.place(dests[0]))


def _is_import_path(model: str) -> bool:
    parts = model.split(".")
    return "/" not in model and len(parts) > 1 and all(part.isidentifier() for part in parts)
