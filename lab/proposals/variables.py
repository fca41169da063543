"""Environment variables: each kind with every sort of text."""

from __future__ import annotations

import random

from app.catalogue import Catalogue
from lab.proposals.words import misspelt

_TEXTS = (
    *("0", "1", "2", "-1", "true", "True", "TRUE", "false", "False", "yes", "on", "off", "", " "),
    *(" 1", "1 ", "1.5", "1e3", "0x1", "zz", "tcp://10.0.0.1:8000", "8000", "1_0", "None", "nan"),
    *("a,b", "{}", '{"a": 1}', "{", "/no/such/file", "auto", "inf", "+1", "²", "1,2", "null", "[]"),
)
_NOT_READ = (
    *("VLLM_SERVICE_HOST", "VLLM_PORT_8000_TCP_ADDR", "VLLM_SERVICE_PORT", "VLLM_USE_V1"),
    *("VLLM_ATTENTION_BACKEND", "VLLM_", "VLLM_X"),
)


def variables(catalogue: Catalogue, rng: random.Random) -> dict[str, str]:
    """Give one to four variables with their texts."""
    names = sorted(catalogue.env_vars)
    given: dict[str, str] = {}
    for _ in range(rng.choice([1, 1, 2, 4])):
        name = rng.choice(names)
        fact = catalogue.env_vars[name]
        text = rng.choice(_TEXTS)
        if fact.choices and rng.random() < 0.7:
            choice = str(rng.choice(fact.choices))
            text = rng.choice([choice, choice.upper(), choice.lower(), f"{choice}x", f" {choice}"])
        form = rng.random()
        if form < 0.08:
            name = misspelt(name, rng)
        elif form < 0.14:
            name = rng.choice(_NOT_READ)
        given[name] = text
    return given
