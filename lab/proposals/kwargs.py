"""Engine arguments as a program gives them to `AsyncEngineArgs`."""

from __future__ import annotations

import random
from typing import Any

from app.catalogue import Catalogue
from lab.proposals.words import Values, misspelt

# What vLLM would look for on this machine.
_SKIPPED = frozenset({"model", "tokenizer", "hf_config_path", "speculative_config"})


def engine_kwargs(catalogue: Catalogue, rng: random.Random) -> dict[str, Any]:
    """Give some arguments, of which one in ten is wrong."""
    values = Values(catalogue, rng)
    fields = catalogue.config_classes["AsyncEngineArgs"].fields
    names = sorted(set(fields) - _SKIPPED)
    kwargs: dict[str, Any] = {"model": "."}
    for name in rng.sample(names, rng.choice([1, 1, 2, 3])):
        kwargs[name] = values.field_value(fields[name])
    nested = [n for n in names if _is_class(fields[n].type)]
    if rng.random() < 0.6:
        name = rng.choice(nested)
        kwargs[name] = values.field_value(fields[name])
    if rng.random() < 0.15:
        kwargs[misspelt(rng.choice(names), rng)] = rng.choice([1, "x", True])
    return kwargs


def _is_class(tree: dict[str, Any]) -> bool:
    return any(part.get("t") == "dataclass" for part in tree.get("of", [tree]))
