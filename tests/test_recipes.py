"""Published command lines that are known good: no rule refuses one that vLLM takes.

`tests/serve_config/recipes.jsonl` has them, each with what vLLM's own parser says. Judged are the
newest version and the oldest one that the recipe is for, without hardware and with as many GPUs
as the line asks for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.version import Version

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.proposal.proposal import Hardware, Proposal
from app.rules.evaluate import judge_only
from app.serve_config.resolve import resolve
from app.verdict.finding import Severity
from app.verdict.verdict import Verdict

LIBRARY: Final = CatalogueLibrary()
OLDEST, NEWEST = LIBRARY.versions[0], LIBRARY.newest
_FILE: Final = Path(__file__).parent / "serve_config" / "recipes.jsonl"
RECIPES: Final[list[dict[str, Any]]] = [json.loads(line) for line in _FILE.read_text().splitlines()]
# A fragment: the GPUs for its context parallelism are in the line that it belongs to. Alone vLLM
# 0.28.0 and 0.32.0 refuse it: "tp_size=1 must be divisible by dcp_size=8".
FRAGMENT: Final = "recipe-kimi-k3-decode_context_parallelism"
# What vLLM changes, drops, or says itself; and hybrid models that leave one GPU no room.
CHANGES: Final = {
    "cli-deprecated-flag",
    "cli-dotted-text",
    "cli-omni",
    "cli-repeated-flag",
    "env-unknown",
    "mamba-blocks-by-name",
    "model-runner-fallback",
    "scheduler-async-off",
    "speculative-mtp-alias",
}


def _judge(recipe: dict[str, Any], version: str, gpu: str | None) -> Verdict:
    members = {"args": recipe["args"], "env": recipe.get("env", {})}
    proposal = read_envelope(members).proposal
    if gpu is not None:
        proposal = replace(proposal, hardware=_machine(proposal, version, gpu))
    return judge_only(proposal, LIBRARY.get(version))


def _machine(proposal: Proposal, version: str, gpu: str) -> Hardware | None:
    """Give a node with the GPUs that the server takes; None for a line that is not read."""
    config = resolve(proposal, LIBRARY.get(version)).config
    if config is None:
        return None
    sizes = ("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size")
    count = 1
    for size in sizes:
        count *= config[size] or 1
    nodes = config["nnodes"] or 1
    return Hardware(gpu, max(1, count // nodes), nodes=nodes)


def _oldest_for(recipe: dict[str, Any]) -> str:
    since = recipe["since"]
    return NEWEST if since == "nightly" else str(max(Version(OLDEST), Version(since)))


@pytest.mark.parametrize("gpu", [None, "H200", "A100-80GB"])
@pytest.mark.parametrize("newest", [True, False], ids=["newest", "oldest"])
def test_a_recipe_that_vllm_takes_has_no_error(newest: bool, gpu: str | None) -> None:
    errors: dict[str, list[str]] = {}
    warnings = set()
    for recipe in RECIPES:
        version = NEWEST if newest else _oldest_for(recipe)
        if version in recipe["refused"]:
            continue
        for finding in _judge(recipe, version, gpu).findings:
            if finding.severity is Severity.ERROR:
                errors.setdefault(recipe["id"], []).append(finding.rule)
            elif finding.severity is Severity.WARNING:
                warnings.add(finding.rule)
    assert errors == {FRAGMENT: ["parallel-context-sizes"]}
    assert warnings <= CHANGES


def test_a_recipe_that_vllm_refuses_is_not_accepted() -> None:
    refused = [recipe for recipe in RECIPES if NEWEST in recipe["refused"]]
    accepted = [
        recipe["id"]
        for recipe in refused
        if "chat_template" not in recipe["refused"][NEWEST]  # a file of the publisher's machine
        if _judge(recipe, NEWEST, None).accepted
    ]
    assert (len(refused) > 20, accepted) == (True, [])
