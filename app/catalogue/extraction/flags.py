"""The options of `vllm serve`, from the parser that vLLM itself builds."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.catalogue.extraction.converters import converter_fact, is_known
from app.catalogue.extraction.installed import Vllm
from app.catalogue.extraction.values import as_fact

_PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
_ARGPARSE_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")


class Tied(str):
    """A help text that remembers which configuration field its option fills.

    argparse keeps the object it is given, and vLLM at most appends to it.
    """

    __slots__ = ("config_class", "config_field")

    config_class: str
    config_field: str

    @classmethod
    def to(cls, config_class: str, config_field: str, text: str) -> Tied:
        """Tie a text to a field."""
        tied = cls(text)
        tied.config_class, tied.config_field = config_class, config_field
        return tied

    def __add__(self, other: str) -> Tied:
        return Tied.to(self.config_class, self.config_field, str(self) + other)


def flag_facts(vllm: Vllm, parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Give one fact a flag, in the parser's order; see `catalogue.Flag`."""
    facts = [action_fact(parser, action, group) for action, group in _actions(parser)]
    for fact in facts:
        if not is_known({"conv": "str", **fact}):
            vllm.note(f"converter of {fact['dest']}: {fact.get('repr', 'unknown')}")
    return facts


def parser_facts(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Give the switches of the parser; the rest of its grammar is code, alike in all versions.

    Source: `utils/argparse_utils.py::FlexibleArgumentParser.parse_args`.
    """
    return {
        "allow_abbrev": parser.allow_abbrev,
        "dash_underscore_equivalent": True,
        "dotted_json_keys": True,
        "list_append_suffix": "+",
        "short_prefix_rewrites": {"-O<n>": "--optimization-level <n>"},
    }


def build_parser(vllm: Vllm) -> tuple[argparse.ArgumentParser, list[type]]:
    """Build the parser of `vllm serve`, with help texts that are tied to configuration fields.

    Returns:
        The parser, and the classes whose fields became options.
    """
    arg_utils = vllm.module("vllm.engine.arg_utils")
    make = vllm.first_module(*_PARSER_MODULES, attribute="make_arg_parser").make_arg_parser
    argparse_utils = vllm.first_module(*_ARGPARSE_MODULES, attribute="FlexibleArgumentParser")
    with _tied_help(arg_utils) as classes, _arguments("serve"):
        parser: argparse.ArgumentParser = make(argparse_utils.FlexibleArgumentParser(prog="vllm"))
    return parser, classes


def action_fact(
    parser: argparse.ArgumentParser, action: argparse.Action, group: str
) -> dict[str, Any]:
    """Give the fact of one action.

    Spellings are read from the parser's own table: from 0.33 on the action lists only those that
    the help shows.
    """
    visible = list(action.option_strings)
    table = parser._option_string_actions
    hidden = [option for option, owner in table.items() if owner is action]
    hidden = [option for option in hidden if option not in visible]
    fact: dict[str, Any] = {
        "dest": action.dest,
        "options": visible,
        "group": group,
        "action": type(action).__name__.removeprefix("_"),
    }
    if action.nargs is not None:
        fact["nargs"] = action.nargs
    if action.default is not None:
        fact["default"] = as_fact(action.default)
    if action.required:
        fact["required"] = True
    if action.nargs == 0:
        fact["takes_value"] = False
    else:
        fact.update(converter_fact(action.type))  # type: ignore[arg-type] # argparse also allows registered names, which vLLM does not use
    if action.choices is not None:
        fact["choices"] = [as_fact(choice) for choice in action.choices]
    if action.const is not None:
        fact["const"] = as_fact(action.const)
    if negative := _negative_options(action, [*visible, *hidden]):
        fact["negative_options"] = negative
    if hidden:
        fact["hidden_options"] = hidden
    if action.choices is None and (suggested := _suggested(action.metavar)):
        fact["suggested"] = suggested
    if _is_deprecated(parser, action):
        fact["deprecated"] = True
    if isinstance(action.help, Tied):
        fact["config_class"] = action.help.config_class
        fact["config_field"] = action.help.config_field
    return fact


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, str]]:
    groups = {
        id(action): str(group.title)
        for group in parser._action_groups
        for action in group._group_actions
    }
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            yield action, groups.get(id(action), "options")


def _negative_options(action: argparse.Action, options: list[str]) -> list[str]:
    """Give the spellings that store false: as the action says, else argparse's `--no-…`."""
    if not isinstance(action, argparse.BooleanOptionalAction):
        return []
    said = getattr(action, "negative_option_strings", None)
    return [
        option
        for option in options
        if (option in said if said is not None else option.startswith("--no-"))
    ]


def _is_deprecated(parser: argparse.ArgumentParser, action: argparse.Action) -> bool:
    """Whether vLLM registered the action as deprecated, or its hand-written help says so."""
    registered = action in getattr(parser, "_deprecated", ())
    told = re.search(r"\bdeprecated\b", action.help or "", re.IGNORECASE)
    return registered or bool(getattr(action, "deprecated", False)) or told is not None


def _suggested(metavar: object) -> list[str] | None:
    """Give names that the help lists and the parser does not enforce: a list, or `{a,b} or …`."""
    if isinstance(metavar, list | tuple):
        return [str(name) for name in metavar]
    listed = re.match(r"\{([^}]*)\}", metavar) if isinstance(metavar, str) else None
    return listed[1].split(",") if listed else None


@contextmanager
def _tied_help(arg_utils: Any) -> Iterator[list[type]]:
    """Make `arg_utils.get_kwargs(Config)` tie each field's help text to the field."""
    original = arg_utils.get_kwargs
    classes: list[type] = []

    def get_kwargs(cls: type) -> dict[str, dict[str, Any]]:
        classes.append(cls)
        kwargs: dict[str, dict[str, Any]] = original(cls)
        for name, members in kwargs.items():
            members["help"] = Tied.to(cls.__name__, name, members.get("help") or "")
        return kwargs

    arg_utils.get_kwargs = get_kwargs
    try:
        yield classes
    finally:
        arg_utils.get_kwargs = original


@contextmanager
def _arguments(*arguments: str) -> Iterator[None]:
    """Run with another command line: vLLM looks at `sys.argv` for `--help` when it is imported."""
    kept = sys.argv
    sys.argv = ["vllm", *arguments]
    try:
        yield
    finally:
        sys.argv = kept
