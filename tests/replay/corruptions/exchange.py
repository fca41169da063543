"""Requests that are not the ones that were answered, and servers that are other ones."""

from __future__ import annotations

import random
from typing import Any

from app.catalogue.semantics import semantics_of
from tests.replay.corruptions.kind import Corrupt, Kind
from tests.replay.corruptions.rows import Case, with_sampling
from tests.replay.corruptions.source import VERSIONS, answered


def use_another_seed(case: Case, rng: random.Random) -> Case | None:
    """Claim another seed."""
    if "seed" not in case["request"]["sampling_params"]:
        return None
    return with_sampling(case, seed=case["request"]["sampling_params"]["seed"] + 1)


def use_another_version(case: Case, rng: random.Random) -> Case | None:
    """Claim a version with the other generator."""
    drawn = semantics_of(case["vllm_version"]).draw
    other = next(version for version in VERSIONS if semantics_of(version).draw is not drawn)
    return {**case, "vllm_version": other}


def draw_in_double(case: Case, rng: random.Random) -> Case | None:
    """Answer with `--use-fp64-gumbel`, which nobody has declared."""
    return answered(case["vllm_version"], case["request"], use_fp64_gumbel=True)


def lengthen_the_prompt(case: Case, rng: random.Random) -> Case | None:
    """Claim a prompt of one token more."""
    return _with_prompt(case, [*case["request"]["token_ids"], 3])


def shorten_the_prompt(case: Case, rng: random.Random) -> Case | None:
    """Claim a prompt of one token less."""
    return _with_prompt(case, case["request"]["token_ids"][:-1])


def claim(**params: Any) -> Corrupt:
    """Make the corruption that claims other sampling parameters."""

    def corrupt(case: Case, rng: random.Random) -> Case | None:
        sampling = case["request"]["sampling_params"]
        same = all(sampling.get(name) == value for name, value in params.items())
        return None if same else with_sampling(case, **params)

    return corrupt


def claim_a_smaller_top_k(case: Case, rng: random.Random) -> Case | None:
    """Claim a top_k of half the widest mask."""
    widest = max(map(len, case["response"]["choices"][0]["sampling_mask"]))
    return with_sampling(case, top_k=widest // 2) if widest > 1 else None


def _with_prompt(case: Case, prompt: list[int]) -> Case:
    return {**case, "request": {**case["request"], "token_ids": prompt}}


EXCHANGE = (
    Kind("another seed", use_another_seed),
    Kind("another version's draw", use_another_version),
    Kind("fp64 noise, undeclared", draw_in_double),
    Kind("prompt longer by one", lengthen_the_prompt),
    Kind("prompt shorter by one", shorten_the_prompt),
    Kind("top_k of half the widest mask claimed", claim_a_smaller_top_k),
    Kind("min_p = 0.2 claimed", claim(min_p=0.2)),
    Kind(
        "temperature 0.5 claimed",
        claim(temperature=0.5),
        unseen="returned logprobs have the server's temperature in them, whatever the request says",
    ),
    Kind(
        "top_p = 0.5 claimed",
        claim(top_p=0.5),
        unseen="what top_p has to leave out cannot be told where fewer than top_k ids are left; "
        "`replay-top-p` warns where all are",
    ),
)
