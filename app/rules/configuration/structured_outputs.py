"""Structured outputs and reasoning parsers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.registry import rule
from app.rules.replacement import nearest_or_none
from app.serve_config.serve_config import ServeConfig
from app.serve_config.suggest import nearest
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "structured-output"
OUTPUTS: Final = "structured_outputs_config"
_CHECK: Final = (
    "vllm/config/structured_outputs.py::StructuredOutputsConfig._validate_structured_output_config"
)


def _command(keys: str, options: str = "") -> str:
    more = f"{options} " if options else ""
    return f"vllm serve m {more}--structured-outputs-config '{{{keys}}}'"


@rule(
    id="structured-output-backend",
    title="The structured-output option needs a named backend",
    explanation="`disable_any_whitespace` exists in the backends `xgrammar` and `guidance`, "
    "`disable_additional_properties` in `guidance`. The default `auto`, which chooses for each "
    "request, is refused with either.",
    remedy="Set `backend` to one that has the option.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CHECK,
    versions=">=0.28",
    covers=("so-whitespace-backend", "so-additional-properties-backend"),
    bad=(
        Example(_command('"disable_any_whitespace": true')),
        Example(_command('"backend": "outlines", "disable_any_whitespace": true')),
        Example(_command('"backend": "xgrammar", "disable_additional_properties": true')),
    ),
    good=(
        Example(_command('"backend": "xgrammar", "disable_any_whitespace": true')),
        Example(_command('"backend": "guidance", "disable_additional_properties": true')),
        Example("vllm serve m"),
    ),
)
def backend(config: ServeConfig) -> Iterator[Finding]:
    """Compare each option with the backends that have it."""
    if config[OUTPUTS] is None:
        return
    named = config[f"{OUTPUTS}.backend"]
    used = named or "auto"
    for option, having in _OPTIONS:
        if not config[f"{OUTPUTS}.{option}"] or used in having:
            continue
        default = "" if named else " (the default)"
        both = config[f"{OUTPUTS}.disable_additional_properties"]
        wanted = "guidance" if both else having[0]
        yield backend.finding(
            f"{option} needs the backend {' or '.join(having)}, and it is {used}{default}",
            location=config.place(OUTPUTS),
            fix=Fix(
                f"use the backend {wanted}",
                (SetFlag(f"{OUTPUTS}.backend", wanted),),
                safe=False,
            ),
            engine_message=f"{option} is only supported for",
            evidence={"backend": used},
        )


_OPTIONS: Final = (
    ("disable_any_whitespace", ("xgrammar", "guidance")),
    ("disable_additional_properties", ("guidance",)),
)


@rule(
    id="structured-output-parser-replaced",
    title="`--reasoning-parser` replaces the one in the JSON",
    explanation="`--reasoning-parser` is written over `reasoning_parser` of "
    "`--structured-outputs-config` without a word.",
    remedy="Give the parser once.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/engine/arg_utils.py::EngineArgs.create_engine_config",
    versions=">=0.28",
    covers=("reasoning-parser-flag-overrides-json",),
    bad=(Example(_command('"reasoning_parser": "deepseek_r1"', "--reasoning-parser qwen3")),),
    good=(
        Example(_command('"reasoning_parser": "qwen3"', "--reasoning-parser qwen3")),
        Example("vllm serve m --reasoning-parser qwen3"),
    ),
)
def parser_replaced(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two."""
    flag, key = config["reasoning_parser"], config[f"{OUTPUTS}.reasoning_parser"]
    if not flag or not key or flag == key:
        return
    yield parser_replaced.finding(
        f"the JSON asks for the reasoning parser {key}, but vLLM will use {flag}, because "
        "--reasoning-parser replaces it",
        location=config.place(OUTPUTS),
        related=tuple(p for p in (config.place("reasoning_parser"),) if p is not None),
        fix=Fix("drop the key", (RemoveFlag(f"{OUTPUTS}.reasoning_parser"),), safe=False),
        evidence={"asked": key, "effective": flag, "dest": f"{OUTPUTS}.reasoning_parser"},
    )


@rule(
    id="structured-output-reasoning-parser",
    title="The reasoning parser is unknown",
    explanation="`--reasoning-parser` names a parser that is registered in this version, unless "
    "`--reasoning-parser-plugin` brings another. vLLM looks it up while it builds the "
    "configuration. `None` turns it off from 0.33 on, where the command line reads it as unset.",
    remedy="Use a registered name.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/reasoning.py::ReasoningConfig.initialize_token_ids",
    versions=">=0.28",
    covers=("reasoning-parser-unknown",),
    bad=(
        Example("vllm serve m --reasoning-parser qwen33"),
        Example("vllm serve m --reasoning-parser None", versions="<0.33"),
    ),
    good=(
        Example("vllm serve m --reasoning-parser qwen3"),
        Example("vllm serve m --reasoning-parser None", versions=">=0.33"),
        Example("vllm serve m"),
    ),
)
def reasoning_parser(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up."""
    name = config["reasoning_parser"]
    known = config.catalogue.registries.get("reasoning_parsers", ())
    if not isinstance(name, str) or not name or not known or name in known:
        return
    if config["reasoning_parser_plugin"]:
        return
    near = nearest(name, known, 1)
    yield reasoning_parser.finding(
        f"{name!r} is no reasoning parser of vLLM {config.catalogue.vllm_version}"
        f"{f'; did you mean {near[0]}?' if near else ''}",
        location=config.place("reasoning_parser"),
        fix=nearest_or_none("reasoning_parser", name, known),
    )


@rule(
    id="structured-output-enforcer-deprecated",
    title="The backend `lm-format-enforcer` is going away",
    explanation="0.33 still has it and says that 0.35 will not.",
    remedy="Use `auto`, `xgrammar` or `guidance`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CHECK,
    versions=">=0.33",
    bad=(Example(_command('"backend": "lm-format-enforcer"')),),
    good=(Example(_command('"backend": "guidance"')),),
)
def enforcer_deprecated(config: ServeConfig) -> Iterator[Finding]:
    """Look for the backend."""
    if config[f"{OUTPUTS}.backend"] == "lm-format-enforcer":
        yield enforcer_deprecated.finding(
            "the structured-output backend lm-format-enforcer is deprecated and goes with 0.35",
            location=config.place(OUTPUTS),
            fix=Fix("use auto", (SetFlag(f"{OUTPUTS}.backend", "auto"),), safe=False),
        )
