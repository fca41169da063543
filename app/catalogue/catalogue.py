"""The catalogue of one vLLM version: what `app.catalogue.extract` wrote, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
from packaging.version import Version

from app.catalogue.requests import RequestFacts


class Converter(msgspec.Struct, frozen=True, omit_defaults=True):
    """How argparse turns one word into a value (`type=` of the option).

    `name` is one of str, int, float, json, dataclass_json, human_readable_int,
    human_readable_int_or_auto, union_dict_and_str, comma_list_int_or_str,
    lower_and_dash_to_underscore, none_to_empty, optional, valueerror_to_argerror, unknown.
    `optional` (a word among `none_tokens` gives None) and `valueerror_to_argerror` wrap `of`;
    `none_to_empty` makes "none" in any case the empty text (0.33's `--reasoning-parser`).
    """

    name: str = msgspec.field(name="conv", default="str")
    of: Converter | None = None
    none_tokens: tuple[str, ...] = ()
    cls: str | None = None
    expands_human_numbers: bool = False


class Flag(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argparse action of `vllm serve`.

    `options` are the visible option strings, `hidden_options` accepted but unlisted ones,
    `negative_options` those that store false. A positional has no options.
    """

    dest: str
    options: tuple[str, ...]
    group: str
    action: str
    nargs: int | str | None = None
    default: Any = None
    required: bool = False
    takes_value: bool = True
    conv: str | None = None
    of: Converter | None = None
    none_tokens: tuple[str, ...] = ()
    cls: str | None = None
    expands_human_numbers: bool = False
    choices: tuple[Any, ...] | None = None
    const: Any = None
    negative_options: tuple[str, ...] = ()
    hidden_options: tuple[str, ...] = ()
    suggested: Any = None
    deprecated: bool | str = False
    config_class: str | None = None
    config_field: str | None = None
    repr: str | None = None

    @property
    def converter(self) -> Converter:
        """The conversion of one word."""
        return Converter(
            name=self.conv or "str",
            of=self.of,
            none_tokens=self.none_tokens,
            cls=self.cls,
            expands_human_numbers=self.expands_human_numbers,
        )

    @property
    def all_options(self) -> tuple[str, ...]:
        """Every spelling that the parser takes."""
        extra = (*self.negative_options, *self.hidden_options)
        return (*self.options, *(o for o in extra if o not in self.options))

    @property
    def name(self) -> str:
        """The spelling used in messages and fixes: the first long option."""
        long = (o for o in self.options if o.startswith("--") and o not in self.negative_options)
        return next(long, self.options[0] if self.options else self.dest)


class ConfigField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of a configuration dataclass; `type` is the tree of `extraction.annotations`.

    `required` tells a field without a default from one whose default is None.
    """

    type: dict[str, Any]
    default: Any = None
    default_from_factory: Any = None
    constraints: dict[str, Any] = {}
    validators: tuple[Any, ...] = ()
    init: bool = True
    required: bool = False


class ConfigClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pydantic dataclass reachable from `VllmConfig` or from a flag."""

    module: str
    fields: dict[str, ConfigField]
    pydantic: bool = False
    extra: str | None = None
    post_init: bool = False
    model_validators: tuple[Any, ...] = ()
    initvars: dict[str, Any] = {}


class EnvironmentFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """How `vllm/envs.py` reads one variable; `strict` means malformed text raises."""

    parse: str
    strict: bool
    default: Any = None
    lower: bool = False
    upper: bool = False
    choices: tuple[Any, ...] = ()
    case_sensitive: bool = True
    also_reads: str | None = None


class ReplayFacts(msgspec.Struct, frozen=True):
    """What the engine says about sampling and trace replay, by a name that says what it is about.

    Start-up: `needs_v2_runner`, `speculative_decoding`, `adaptive_verification`, `diffusion`,
    `custom_logits_processors`, `processed_logprobs`; request time: `temperature`, `top_k`. Trace
    replay is under `trace_…`, batch-sharded sampling under `batch_sharded_…`. A rule that no
    release has is named after its words.
    """

    messages: dict[str, str] = {}


class RunnerStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a decision, or one feature that a model runner lacks, as what it depends on.

    `reads` are dotted fields of `VllmConfig`, or names such as `HAS_TRITON`; `compared` holds the
    literals of a comparison by field and relation (`in`, `not_in`, `contains`). A step has
    `gives`: true, false, or what it reads; a feature a `label`, or `includes` another list.
    """

    reads: tuple[str, ...] = ()
    compared: dict[str, dict[str, tuple[str, ...]]] = {}
    gives: Any = None
    label: str | None = None
    includes: str | None = None


class RunnerFacts(msgspec.Struct, frozen=True):
    """What `VllmConfig.use_v2_model_runner` depends on.

    `default_v2_architectures` are the mixture-of-experts and hybrid models that default to V2
    where there is such a list (0.28); `rocm_v1_architectures` run on V1 on ROCm, and
    `breakable_graph_architectures` without compilation unless told not to. `unsupported`
    has the keys `v2`, `v1` and `dbo`.
    """

    default_v2_architectures: tuple[str, ...] = ()
    rocm_v1_architectures: tuple[str, ...] = ()
    breakable_graph_architectures: tuple[str, ...] = ()
    decision: tuple[RunnerStep, ...] = ()
    helpers: dict[str, tuple[RunnerStep, ...]] = {}
    unsupported: dict[str, tuple[RunnerStep, ...]] = {}
    messages: dict[str, str] = {}


class ModelFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What vLLM decides about a model by its `model_type`, read from syntax trees.

    Attributes:
        mla_model_types: those that may run multi-head latent attention (`is_deepseek_mla`).
        mla_needs_causal: whether `is_causal: false` in config.json turns it off (`use_mla`).
        mm_prefix_model_types: those whose images attend in both directions.
        float16_refused: those that do not run in float16 (`_FLOAT16_NOT_SUPPORTED_MODELS`).
        scaled_rope_types: rotary embeddings whose length config.json has scaled already
            (`_get_and_verify_max_len`).
        convertors: model types with a convertor of their own, and the methods it redefines.
        default_architectures: the class of a model type whose config.json names none.
    """

    mla_model_types: tuple[str, ...] = ()
    mla_needs_causal: bool = False
    mm_prefix_model_types: tuple[str, ...] = ()
    float16_refused: tuple[str, ...] = ()
    scaled_rope_types: tuple[str, ...] = ()
    convertors: dict[str, tuple[str, ...]] = {}
    default_architectures: dict[str, str] = {}


class ModelTypeFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the configuration class of a `model_type` makes of a config.json.

    Attributes:
        text: where the text model's part is (dotted), and the model type that it has if it does
            not say so; None where the whole is the text model's.
        flat: whether the whole may have the text model's keys instead of such a part.
        defaults: values of keys that config.json may leave out; those that are as if absent
            (None, 0, false, as many key-value heads as heads) are left out here. With `text`
            they are those of the whole.
        aliases: names under which config.json keeps a key.
        gated: keys that count only where another one is true.
    """

    text: tuple[str, str | None] | None = None
    flat: bool = False
    defaults: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    gated: dict[str, str] = {}


class _Placeholders(dict[str, object]):
    """Leaves a placeholder that has no value as it is."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


class Catalogue(msgspec.Struct, frozen=True, dict=True):
    """All that is known about one vLLM version without running it."""

    vllm_version: str
    parser: dict[str, Any]
    flags: tuple[Flag, ...]
    config_classes: dict[str, ConfigClass]
    env_vars: dict[str, EnvironmentFact]
    registries: dict[str, Any]
    not_captured: tuple[str, ...] = ()
    captured_on_platform: str | None = None
    capture_note: str | None = None
    # Compute capability of the GPU that attention backends were asked about.
    captured_on_device: str | None = None
    platform_overrides: dict[str, Any] = {}
    # Read from the syntax tree of that version.
    replay: ReplayFacts = ReplayFacts()
    runner: RunnerFacts = RunnerFacts()
    requests: RequestFacts = RequestFacts()
    # Architectures by ability; those under `not_inspected` are not known either way.
    model_abilities: dict[str, tuple[str, ...]] = {}
    # How an architecture pools and attends, where that is not the default of all.
    model_pooling: dict[str, dict[str, str]] = {}
    model_facts: ModelFacts = ModelFacts()
    model_configs: dict[str, ModelTypeFacts] = {}
    # The config.json keys that vLLM takes the number of experts from, first match wins.
    expert_count_keys: tuple[str, ...] = ()

    @cached_property
    def version(self) -> Version:
        """The version, comparable."""
        return Version(self.vllm_version)

    @cached_property
    def by_dest(self) -> Mapping[str, Flag]:
        """Flags by argparse destination."""
        return {flag.dest: flag for flag in self.flags}

    @cached_property
    def by_option(self) -> Mapping[str, Flag]:
        """Flags by every accepted option string."""
        return {option: flag for flag in self.flags for option in flag.all_options}

    def has_flag(self, dest: str) -> bool:
        """Whether this version knows the destination."""
        return dest in self.by_dest

    def on_platform(self, platform: str) -> Catalogue:
        """Give the catalogue as that platform has it (`cpu`, `cuda`, …).

        One that was not captured is taken to be like `captured_on_platform`.
        """
        if platform not in self.platform_overrides:
            return self
        if platform not in self._on_platforms:
            self._on_platforms[platform] = self._overridden(platform)
        return self._on_platforms[platform]

    @cached_property
    def _on_platforms(self) -> dict[str, Catalogue]:
        return {}

    def _overridden(self, platform: str) -> Catalogue:
        overrides = self.platform_overrides[platform]
        raw = msgspec.to_builtins(self)
        flags = {flag["dest"]: flag for flag in raw["flags"]}
        for dest, changes in overrides.get("flags", {}).items():
            flags[dest] = _changed(flags.get(dest, {}), changes)
        raw["flags"] = list(flags.values())
        for path, changes in overrides.get("fields", {}).items():
            cls, name = path.split(".", 1)
            fields = raw["config_classes"][cls]["fields"]
            fields[name] = _changed(fields[name], changes)
        raw["captured_on_platform"] = platform
        return msgspec.convert(raw, Catalogue)

    def engine_message(self, name: str, **values: object) -> str | None:
        """Give the engine's own text, or None if this version has no such rule.

        Names: see `ReplayFacts`; those of the model runner are `choice_…`, `v2_…` and `v1_…`.
        `values` fill the text's placeholders; one without a value stays as `{name}`.
        """
        text = self.replay.messages.get(name, self.runner.messages.get(name))
        return None if text is None else text.format_map(_Placeholders(values))

    def has_ability(self, architecture: str, ability: str) -> bool | None:
        """Whether a model class has an ability (`is_hybrid`, `supports_pp`, …); None if unknown."""
        if architecture not in self._architectures or ability not in self.model_abilities:
            return None
        if (
            architecture in self._abilities["not_inspected"]
            and ability not in self._abilities["read_in_source"]
        ):
            return None
        return architecture in self._abilities[ability]

    @cached_property
    def _abilities(self) -> Mapping[str, frozenset[str]]:
        sets = {ability: frozenset(names) for ability, names in self.model_abilities.items()}
        return {"not_inspected": frozenset(), "read_in_source": frozenset(), **sets}

    @cached_property
    def _architectures(self) -> frozenset[str]:
        return frozenset(self.registries.get("model_archs", ()))


def _changed(fact: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Apply what `app.catalogue.extraction.merge` wrote down as a difference."""
    without = changes.get("$without", ())
    changed = {**fact, **changes}
    return {key: value for key, value in changed.items() if key not in (*without, "$without")}
