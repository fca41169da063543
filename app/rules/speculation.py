"""The speculative configuration as vLLM reads it.

Source: `engine/arg_utils.py::create_speculative_config` and
`config/speculative.py::SpeculativeConfig.__post_init__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.rules.derived import derived
from app.rules.derived.draft_config import DraftConfig, rewritten
from app.rules.derived.hf_config import MODEL_CONFIG, number
from app.serve_config.serve_config import Abstain, ServeConfig, Unresolved, UnresolvedValue
from app.verdict.location import Location

DRAFT_CONFIG: Final = "the draft model's config.json (`draft_model_config`)"

# Flags that give one key of the configuration, and the key.
SHORTHANDS: Final = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
# Methods that neither a draft model's name nor its config.json changes.
_WITHOUT_DRAFT: Final = frozenset(
    {"ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"}
)
_KEPT: Final = frozenset({"eagle", "eagle3", "dflash", "dspark"})
# Methods that need a model, and whose draft is not the served model itself.
NEED_MODEL: Final = frozenset(
    {"draft_model", "eagle", "eagle3", "dflash", "medusa", "mlp_speculator", "custom_class"}
)
_OWN_DRAFT: Final = frozenset({"mtp", "dspark"})
# What in the name of a draft model decides, in vLLM's order.
_BY_NAME: Final = (
    ("eagle-", "eagle"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
)
_DSPARK_CLASSES: Final = frozenset(
    {"Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel", "MuseSparkDSparkModel"}
)
# Methods that hold unless the name says otherwise.
_BY_METHOD: Final = frozenset({"mtp", "medusa", "mlp_speculator"})
_PARALLEL: Final = frozenset({"dflash", "dspark"})
DEFAULT_TREE_DEPTH: Final = 24


@dataclass(frozen=True, slots=True)
class Speculation:
    """What was given: the keys, and the settings that gave them."""

    keys: Mapping[str, Any]
    dests: tuple[str, ...]
    place: Location | None
    config: ServeConfig = field(repr=False, compare=False)

    @property
    def requested(self) -> str:
        """The method before vLLM looks at the draft model.

        Raises:
            Abstain: it cannot be read.
        """
        given, model = self._text("method"), self._text("model")
        if given is None:
            if model in {"ngram", "[ngram]"}:
                return "ngram"
            custom = model is not None and _is_import_path(model)
            return "custom_class" if custom else "draft_model"
        if given == "[ngram]":
            return "ngram"
        return "mtp" if given.endswith("_mtp") else given

    @property
    def method(self) -> str:
        """The method that vLLM settles on; the one asked for where it is then refused.

        Raises:
            Abstain: that depends on the draft model's config.json.
        """
        requested = self.requested
        if requested in _WITHOUT_DRAFT or requested in _KEPT:
            return requested
        if requested not in _BY_METHOD | {"draft_model"}:
            raise Abstain("what the speculative method means")
        hinted = self.hinted_method
        if hinted is not None:
            return hinted
        try:
            return self._method_of_draft() or requested
        except Abstain as missing:
            if requested not in _BY_METHOD or type(missing) is not Abstain:
                raise
            return requested

    @property
    def hinted_method(self) -> str | None:
        """The method that the name of the draft model decides.

        Source: `SpeculativeConfig.__post_init__`, "Automatically detect the method".
        """
        name = (self.draft_name or "").lower()
        return next((method for part, method in _BY_NAME if part in name), None)

    @property
    def fits(self) -> bool:
        """Whether the draft model is one for the requested method.

        Raises:
            Abstain: the draft's config.json is needed.
        """
        requested = self.requested
        if requested in _WITHOUT_DRAFT | _KEPT | {"draft_model"} or self.hinted_method is not None:
            return True
        return self._method_of_draft() is not None

    @property
    def has_draft(self) -> bool:
        """Whether vLLM makes a configuration of a draft model (the last branch there)."""
        if self.requested in _WITHOUT_DRAFT:
            return False
        return self.draft_name is not None

    @property
    def draft_name(self) -> str | None:
        """The draft model; the served model where that is its own draft."""
        given = self._text("model")
        if given is not None:
            return given
        own = self.requested in _OWN_DRAFT and self.value("num_speculative_tokens") is not None
        return _served(self.config) if own else None

    @property
    def draft(self) -> DraftConfig:
        """The draft's config.json as vLLM rewrites it.

        Raises:
            Abstain: nobody gave it.
        """
        return _draft_of(self.config)

    @property
    def tokens(self) -> int | None:
        """How many tokens are drafted; None where nothing says so, and vLLM refuses.

        Raises:
            Abstain: the draft's config.json would say.
        """
        given = self.whole("num_speculative_tokens")
        if given is not None or self.keys.get("num_speculative_tokens") is not None:
            return given
        if self.requested == "suffix":
            depth = self.whole("suffix_decoding_max_tree_depth")
            return DEFAULT_TREE_DEPTH if depth is None else depth
        if not self.has_draft or self.method == "mtp":
            return None  # with MTP vLLM compares before it has a default
        return self._tokens_of_draft()

    @property
    def parallel(self) -> bool:
        """Whether all tokens are drafted at once (`parallel_drafting`)."""
        return bool(self.value("parallel_drafting")) or self.method in _PARALLEL

    def value(self, key: str) -> Any:
        """Give one key, or None if it was not given.

        Raises:
            UnresolvedValue: it depends on an unresolved variable.
        """
        value = self.keys.get(key)
        if isinstance(value, Unresolved):
            raise UnresolvedValue(value.needs, self.place)
        return value

    def whole(self, key: str) -> int | None:
        """Give a whole number, also where it is written as text; None for anything else.

        Raises:
            UnresolvedValue: it depends on an unresolved variable.
        """
        value = self.value(key)
        if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                return None
        return number(value)

    def _method_of_draft(self) -> str | None:
        """Give the method that the draft's config.json decides; None if it decides nothing."""
        if not self.has_draft:
            return None if self.requested != "mtp" else "mtp"
        draft, mtp = self.draft, mtp_types(self.config)
        classes = set(draft.architectures)
        if "MuseGlimmerAssistantModel" in classes:
            return "dflash"
        of_qwen3 = "DSparkDraftModel" in classes and draft.model_type == "qwen3"
        if classes & _DSPARK_CLASSES or of_qwen3:
            return "dspark"
        if draft.model_type in {"medusa", "mlp_speculator"}:
            return draft.model_type if draft.model_type in methods(self.config) else None
        if draft.model_type in mtp:
            return "mtp"
        return "medusa" if self.requested == "medusa" else None

    def _tokens_of_draft(self) -> int | None:
        draft = self.draft
        if self.method != "dspark":
            return draft.n_predict
        for key in ("block_size", "dspark_block_size"):
            if draft.values.get(key) is not None:
                return number(draft.values[key])
        return None

    def _text(self, key: str) -> str | None:
        value = self.value(key)
        if value is not None and not isinstance(value, str):
            raise Abstain(f"a speculative {key} that can be read")
        return value


@derived
def speculation_of(config: ServeConfig) -> Speculation | None:
    """Give the speculative configuration, or None where there is none.

    Raises:
        UnresolvedValue: a part of it depends on an unresolved variable.
    """
    whole = config["speculative_config"]
    dests = ["speculative_config"] if whole is not None else []
    keys = dict(whole) if isinstance(whole, Mapping) else {}
    keys = {str(key).replace("-", "_"): value for key, value in keys.items()}
    for dest, key in SHORTHANDS.items():
        if config[dest] is not None:
            keys[key] = config[dest]
            dests.append(dest)
    if not dests:
        return None
    return Speculation(keys, tuple(dests), config.place(dests[0]), config)


@derived
def draft_slots(config: ServeConfig) -> int:
    """Give the rows of a batch that drafting takes for each request besides the target's.

    Source: `SpeculativeConfig.max_num_new_slots_for_drafting`, as it was up to 0.32.

    Raises:
        Abstain: the method or the number of tokens is not known.
    """
    speculation = speculation_of(config)
    tokens = None if speculation is None else speculation.tokens
    if speculation is None or tokens is None:
        return 0
    if speculation.method == "dflash":
        return tokens
    if speculation.parallel:
        return tokens if speculation.method == "draft_model" else tokens - 1
    return 1 if speculation.method == "draft_model" else 0


@derived
def methods(config: ServeConfig) -> frozenset[str]:
    """Give the methods that this version knows, aliases included."""
    flag = config.catalogue.by_dest.get("spec_method")
    return frozenset(str(c) for c in (flag.choices or ()) if c) if flag is not None else frozenset()


@derived
def mtp_types(config: ServeConfig) -> frozenset[str]:
    """Give the model types of drafts that make the method `mtp` (`MTPModelTypes`)."""
    return frozenset(m for m in methods(config) if m == "mtp" or m.endswith("_mtp"))


@derived
def _draft_of(config: ServeConfig) -> DraftConfig:
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        raise Abstain("a draft model")
    raw = config.draft_model_config
    if raw is None:
        if speculation.draft_name != _served(config):
            raise Abstain(DRAFT_CONFIG)
        # Overrides are for the served model alone.
        raw = config.model_config
        if raw is None:
            raise Abstain(MODEL_CONFIG)
    if speculation.requested == "medusa":
        raw = {**raw, "model_type": "medusa"}
    return rewritten(raw, mtp_types(config))


def _served(config: ServeConfig) -> str | None:
    named = config["model_tag"] or config["model"]
    return named if isinstance(named, str) else None


def _is_import_path(model: str) -> bool:
    parts = model.split(".")
    return "/" not in model and len(parts) > 1 and all(part.isidentifier() for part in parts)
