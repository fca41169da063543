"""Proposals for one version, drawn from its catalogue: right ones, and wrong in every way we know.

`proposals(catalogue, seed, count)` gives questions of `lab.parser_oracle`, the same ones for the
same seed.
"""

from __future__ import annotations

import random

from app.catalogue import Catalogue
from lab.parser_cases import hand_written
from lab.parser_oracle import Question
from lab.proposals.command_lines import Writer
from lab.proposals.files import config_file
from lab.proposals.found import found
from lab.proposals.kwargs import engine_kwargs
from lab.proposals.variables import variables

# What one proposal in a hundred is.
_SHARES = {"words": 62, "file": 18, "kwargs": 12, "variables": 8}


def proposals(catalogue: Catalogue, seed: int, count: int) -> list[Question]:
    """Give what is written by hand and what once differed, then generated ones up to `count`."""
    rng = random.Random(f"{catalogue.vllm_version}/{seed}")  # noqa: S311 - not for secrets
    asked: list[Question] = [
        {"args": args, "env": env, "files": files} for args, env, files in hand_written()
    ]
    asked += found()
    writer = Writer(catalogue, rng)
    while len(asked) < count:
        (kind,) = rng.choices(list(_SHARES), list(_SHARES.values()))
        if kind == "words":
            asked.append({"args": writer.command_line()})
        elif kind == "file":
            asked.append(config_file(writer, rng))
        elif kind == "kwargs":
            asked.append({"kwargs": engine_kwargs(catalogue, rng)})
        else:
            asked.append({"variables": variables(catalogue, rng)})
    return asked
