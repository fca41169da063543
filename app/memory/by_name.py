"""What a model's name says of it, where its config.json is not known: never more than a hint.

Hugging Face names carry the number of parameters (`70B`, `8x7b`), how weights are quantised
(`-FP8`, `-AWQ`) and mostly the family (`Qwen3.5-…`), which vLLM's classes are named after, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from app.serve_config.serve_config import ServeConfig

_PARAMETERS: Final = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)
# Bytes a weight; else there are two.
_NARROW: Final = (
    (re.compile(r"fp8|int8|w8a8", re.IGNORECASE), 1.0),
    (re.compile(r"fp4|int4|awq|gptq|w4a16|4bit|mxfp4|bnb|bitsandbytes|gguf", re.IGNORECASE), 0.5),
)
# Names of families that keep states: their kind of layer instead of a class of vLLM's.
_KINDS: Final = ("hybrid", "mamba")
# A family's name of two letters (`D3`) may be part of any name.
_SHORTEST: Final = 4
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z][a-z]+\d*|_\d+")
# What a class has after its family's name.
_HEADS: Final = re.compile(r"(?:For[A-Z]|Model$|_Nano|_Super|_Omni).*")


@dataclass(frozen=True, slots=True)
class NamedWeights:
    """The weights of a whole model by its name: parameters and bytes."""

    name: str
    parameters: float
    bytes: float


def named_weights(config: ServeConfig) -> NamedWeights | None:
    """Read the size of the weights in the model's name; None where it has none."""
    for name in _names(config):
        found = _PARAMETERS.search(name)
        if found is not None:
            count = float(found[2]) * int(found[1] or 1) * 1e9
            return NamedWeights(name, count, count * _width(config, name))
    return None


def says_hybrid(config: ServeConfig) -> str | None:
    """Give the part of the model's name that says that its layers keep states; None for none."""
    pattern = _hybrids(tuple(config.catalogue.model_abilities.get("is_hybrid", ())))
    for name in _names(config):
        found = pattern.search(name)
        if found is not None:
            return found[0]
    return None


def _names(config: ServeConfig) -> Iterator[str]:
    for dest in ("model", "model_tag"):
        name = config[dest]
        if isinstance(name, str):
            yield name


def _width(config: ServeConfig, name: str) -> float:
    asked = config["quantization"]
    text = f"{name} {asked}" if isinstance(asked, str) else name
    return next((width for pattern, width in _NARROW if pattern.search(text)), 2.0)


@lru_cache(maxsize=32)
def _hybrids(classes: tuple[str, ...]) -> re.Pattern[str]:
    """Match names like those of a version's classes that keep states (`is_hybrid`)."""
    families = {family for cls in classes if len(family := _family(cls)) >= _SHORTEST}
    words = "|".join(sorted({*_KINDS, *families}, key=len, reverse=True))
    return re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", re.IGNORECASE)


def _family(cls: str) -> str:
    """Make `Qwen3_5MoeForCausalLM` a pattern for `Qwen3.5`."""
    words = [word for word in _WORDS.findall(_HEADS.sub("", cls)) if word != "Moe"]
    parts = [rf"[._]{word[1:]}" if word[0] == "_" else f"[-_. ]?{word}" for word in words]
    return "".join(parts).removeprefix("[-_. ]?")
