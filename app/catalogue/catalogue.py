"""The catalogue of one vLLM version: what `app.catalogue.extract` wrote, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
from packaging.version import Version


class Converter(msgspec.Struct, frozen=True, omit_defaults=True):
    """How argparse turns one word into a value (`type=` of the option).

    `name` is one of str, int, float, json, dataclass_json, human_readable_int,
    human_readable_int_or_auto, union_dict_and_str, comma_list_int_or_str,
    lower_and_dash_to_underscore, optional, valueerror_to_argerror, unknown; the last three
    wrap or hide another one.
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
    nargs: int | str | None
    default: Any
    required: bool
    takes_value: bool
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
    """A field of a configuration dataclass; `type` is the extractor's type tree."""

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
    line: int
    pydantic: bool
    extra: str | None
    post_init: bool
    fields: dict[str, ConfigField]
    model_validators: tuple[Any, ...] = ()
    initvars: dict[str, Any] = {}


class EnvironmentFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """How `vllm/envs.py` reads one variable; `strict` means malformed text raises."""

    line: int
    parse: str
    strict: bool
    default: Any = None
    lower: bool = False
    upper: bool = False
    choices: tuple[Any, ...] = ()
    case_sensitive: bool = True
    also_reads: str | None = None


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
    platform_overrides: dict[str, Any] = {}
    # What the sampling-replay and runner code of that version says, read from its syntax tree.
    replay: dict[str, Any] = {}
    runner: dict[str, Any] = {}
    model_abilities: dict[str, Any] = {}

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
