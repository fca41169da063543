"""The sampling values of requests that send none.

Source: `config/model.py::ModelConfig.get_diff_sampling_param`, and what requests are held to in
`sampling_params.py::SamplingParams._verify_args`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "sampling"
OVERRIDE: Final = "override_generation_config"
_SOURCE: Final = "vllm/config/model.py::ModelConfig.get_diff_sampling_param"


def _between(low: float, high: float) -> Callable[[float], bool]:
    return lambda value: low <= value <= high


# What vLLM reads, and whether a request may have the value (`SamplingParams._verify_args`).
_READ: Final[Mapping[str, tuple[str, Callable[[float], bool]]]] = {
    "repetition_penalty": ("above 0", lambda value: value > 0),
    "presence_penalty": ("from -2 to 2", _between(-2, 2)),
    "frequency_penalty": ("from -2 to 2", _between(-2, 2)),
    "temperature": ("from 0 to 2", _between(0, 2)),
    "top_k": ("at least -1", lambda value: value >= -1),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "min_p": ("from 0 to 1", _between(0, 1)),
    "max_new_tokens": ("at least 1", lambda value: value >= 1),
}


def _command(keys: str) -> str:
    return f"vllm serve m --override-generation-config '{{{keys}}}'"


def _overrides(config: ServeConfig) -> dict[str, Any]:
    whole = config[OVERRIDE]
    if not isinstance(whole, Mapping):
        return {}
    return {str(key): config[f"{OVERRIDE}.{key}"] for key in whole if "." not in str(key)}


@rule(
    id="sampling-override-unknown",
    title="An overridden generation setting has no effect",
    explanation="Of `--override-generation-config` vLLM takes repetition_penalty, "
    "presence_penalty, frequency_penalty, temperature, top_k, top_p, min_p and max_new_tokens as "
    "defaults of requests, and drops the rest without a word. `max_tokens` is written "
    "`max_new_tokens` there.",
    remedy="Drop the key, or spell it as vLLM does.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    versions=">=0.28",
    covers=("override-generation-unknown-key",),
    bad=(Example(_command('"max_tokens": 256')), Example(_command('"do_sample": true'))),
    good=(Example(_command('"max_new_tokens": 256, "temperature": 0.2')),),
)
def override_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look for keys that are not read."""
    unknown = [key for key in _overrides(config) if key not in _READ]
    if not unknown:
        return
    renamed = unknown == ["max_tokens"]
    edits = tuple(RemoveFlag(f"{OVERRIDE}.{key}") for key in unknown)
    value = config[f"{OVERRIDE}.max_tokens"]
    yield override_unknown.finding(
        f"{', '.join(unknown)} in --override-generation-config "
        f"{'has' if len(unknown) == 1 else 'have'} no effect on requests"
        f"{'; max_new_tokens is meant' if renamed else ''}",
        location=config.place(OVERRIDE),
        fix=Fix(
            "rename it to max_new_tokens",
            (*edits, SetFlag(f"{OVERRIDE}.max_new_tokens", value)),
            safe=False,
        )
        if renamed
        else Fix(f"drop {', '.join(unknown)}", edits, safe=False),
        evidence={"asked": unknown, "effective": None, "dest": OVERRIDE},
    )


@rule(
    id="sampling-override-refused",
    title="A default that every request is refused for",
    explanation="vLLM does not look at the values of `--override-generation-config` when it "
    "starts. A value out of range makes it refuse each request that relies on the default.",
    remedy="Choose a value that a request may send.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    versions=">=0.28",
    covers=("override-generation-bad-value",),
    bad=(
        Example(_command('"top_p": 0')),
        Example(_command('"temperature": -1')),
        Example(_command('"max_new_tokens": 0')),
    ),
    good=(Example(_command('"top_p": 0.9, "temperature": 0, "top_k": 20')),),
)
def override_refused(config: ServeConfig) -> Iterator[Finding]:
    """Compare each value with what a request may have."""
    for key, value in _overrides(config).items():
        if key not in _READ or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        wanted, allowed = _READ[key]
        if not allowed(value):
            yield override_refused.finding(
                f"the default {key} is {value}, and must be {wanted}: every request without its "
                "own is refused",
                location=config.place(OVERRIDE),
                fix=Fix(f"drop {key}", (RemoveFlag(f"{OVERRIDE}.{key}"),), safe=False),
            )


@rule(
    id="sampling-defaults-overridden",
    title="Requests sample with other defaults than vLLM's",
    explanation="`--override-generation-config` changes what requests get that send no value of "
    "their own. The checkpoint's generation_config.json does the same unless "
    "`--generation-config vllm` is given; nobody tells the gate what is in that file.",
    remedy="Add `--generation-config vllm` for vLLM's own defaults.",
    severity=Severity.INFO,
    area=AREA,
    source=_SOURCE,
    versions=">=0.28",
    covers=("generation-config-overrides-defaults",),
    bad=(Example(_command('"temperature": 0.2')),),
    good=(Example("vllm serve m"), Example("vllm serve m --generation-config vllm")),
)
def defaults_overridden(config: ServeConfig) -> Iterator[Finding]:
    """Tell the values that are known."""
    known = {key: v for key, v in _overrides(config).items() if key in _READ and v is not None}
    if known:
        listed = ", ".join(f"{key} {value}" for key, value in known.items())
        yield defaults_overridden.finding(
            f"requests that send none get {listed}",
            location=config.place(OVERRIDE),
            evidence={"asked": None, "effective": known, "dest": OVERRIDE},
        )
