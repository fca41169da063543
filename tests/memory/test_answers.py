"""The estimate beside what vLLM itself built and planned (`python -m lab.memory`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.memory.estimate import weight_bytes
from app.memory.kv_cache import request_bytes
from app.memory.pages import pool_of
from app.memory.weights import parameters
from app.proposal.envelope import read_envelope
from app.rules.derived.cuda_graphs import graph_mode
from app.rules.derived.mamba import cache_mode
from app.rules.derived.scheduler import max_num_seqs
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig

LIBRARY = CatalogueLibrary()
ROOT = Path(__file__).parents[2]
ANSWERS = sorted((ROOT / "tests/memory/answers").glob("*.jsonl"))
VERSIONS = [path.stem for path in ANSWERS]
LENGTH = 1024
H100 = {"gpu": "H100-80GB", "count": 8}


def models() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in ("model_configs.json", "memory_models.json"):
        for name, parts in json.loads((ROOT / "lab" / file).read_text()).items():
            found[name] = parts.get("config.json", parts)
    return found


MODELS = models()


def rows(version: str) -> Iterator[tuple[dict[str, Any], ServeConfig]]:
    """Give vLLM's answers and our configuration of the same."""
    text = (ROOT / f"tests/memory/answers/{version}.jsonl").read_text()
    for row in map(json.loads, text.splitlines()):
        if "error" in row:
            continue
        args = ["m", *row["args"], "--max-model-len", str(LENGTH)]
        body = {"args": args, "model_config": MODELS[row["model"]], "hardware": H100}
        config = resolve(read_envelope(body).proposal, LIBRARY.get(version)).config
        assert config is not None, row
        yield row, config


def _is_planned(row: dict[str, Any]) -> bool:
    """Whether it is no model of states alone that keeps those of every block."""
    return row["mode"] != "all" or not row["model"].startswith(("mamba", "falcon-mamba"))


def test_every_version_was_asked() -> None:
    assert sorted(str(version) for version in LIBRARY.versions) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_weights_are_those_that_vllm_would_load(version: str) -> None:
    compared = 0
    for row, config in rows(version):
        if row["args"] in ([], ["--dtype", "bfloat16"]):
            compared += 1
            quantised = MODELS[row["model"]].get("quantization_config") is not None
            if not quantised:  # a packed weight is several
                assert parameters(config).total == pytest.approx(row["parameters"], rel=0.01), row
            # Kernels for MXFP4 pad their experts.
            near = 0.07 if row["model"].startswith("gpt-oss") else 0.01
            assert weight_bytes(config) == pytest.approx(row["bytes"], rel=near), row
        elif row["args"][0] == "-tp":  # each rank has what cannot be divided
            assert 0.91 < weight_bytes(config) / row["bytes"] < 1.01, row
    assert compared >= 20


@pytest.mark.parametrize("version", VERSIONS)
def test_blocks_are_exactly_those_that_vllm_plans(version: str) -> None:
    compared = 0
    for row, config in rows(version):
        if "page" not in row:
            continue
        if not _is_planned(row):
            with pytest.raises(Abstain):
                pool_of(config)
            continue
        pool = pool_of(config)
        assert (pool.page, cache_mode(config)) == (row["page"], row["mode"]), row
        assert pool.blocks(row["memory"]) == row["blocks"], row
        assert max_num_seqs(config) == row["max_num_seqs"], row
        assert graph_mode(config) == row["graphs"], row
        if pool.block:
            assert pool.block == row["block_size"], row
        compared += 1
    assert compared > 60


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_takes_what_vllm_plans(version: str) -> None:
    for row, config in rows(version):
        if "page" in row and _is_planned(row):
            assert request_bytes(config, LENGTH) == row["request"], row
